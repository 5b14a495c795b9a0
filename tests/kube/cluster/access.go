package cluster

import (
	"bufio"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// Namespace makes a namespace with a name of its own. It is left behind: to
// delete one takes Kubernetes longer than most tests.
func (c *Cluster) Namespace(tb testing.TB) string {
	tb.Helper()
	ns, err := c.Client.CoreV1().Namespaces().Create(tb.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return ns.Name
}

// An Account is a service account and what it may do in its own namespace.
type Account struct {
	Namespace, Name string

	c *Cluster
}

// Account makes a service account that may do what the rules say.
func (c *Cluster) Account(tb testing.TB, namespace string, rules ...rbacv1.PolicyRule) *Account {
	tb.Helper()
	a := &Account{Namespace: namespace, Name: "gateway", c: c}
	meta := metav1.ObjectMeta{Name: a.Name}
	_, err := c.Client.CoreV1().ServiceAccounts(namespace).Create(tb.Context(),
		&corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := c.Client.RbacV1().Roles(namespace).Create(tb.Context(),
		&rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	if _, err := c.Client.RbacV1().RoleBindings(namespace).Create(tb.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: a.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: a.Name, Namespace: namespace}},
	}, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	return a
}

// AccountNamed returns a service account that is there already.
func (c *Cluster) AccountNamed(namespace, name string) *Account {
	return &Account{Namespace: namespace, Name: name, c: c}
}

// Allow replaces what the account may do.
func (a *Account) Allow(tb testing.TB, rules ...rbacv1.PolicyRule) {
	tb.Helper()
	_, err := a.c.Client.RbacV1().Roles(a.Namespace).Update(tb.Context(),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: a.Name}, Rules: rules}, metav1.UpdateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
}

// User returns the account's name as a user of the API.
func (a *Account) User() string { return "system:serviceaccount:" + a.Namespace + ":" + a.Name }

// Token returns a token as a kubelet would fetch it for a pod.
func (a *Account) Token(tb testing.TB) string {
	tb.Helper()
	request, err := a.c.Client.CoreV1().ServiceAccounts(a.Namespace).CreateToken(tb.Context(), a.Name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return request.Status.Token
}

// leeway is how long after its end the API server takes a token.
const leeway = time.Minute

// ShortToken returns a token that is taken for a shorter time than the API
// server grants one for.
func (a *Account) ShortToken(tb testing.TB, lifetime time.Duration) string {
	tb.Helper()
	account, err := a.c.Client.CoreV1().ServiceAccounts(a.Namespace).Get(tb.Context(), a.Name, metav1.GetOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	now := time.Now().Add(-leeway)
	claims, err := json.Marshal(map[string]any{
		"iss": issuer, "aud": []string{issuer}, "sub": a.User(),
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(lifetime).Unix(),
		"kubernetes.io": map[string]any{
			"namespace":      a.Namespace,
			"serviceaccount": map[string]any{"name": a.Name, "uid": account.UID},
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	token := encode([]byte(`{"alg":"RS256"}`)) + "." + encode(claims)
	sum := sha256.Sum256([]byte(token))
	signature, err := rsa.SignPKCS1v15(rand.Reader, a.c.key, crypto.SHA256, sum[:])
	if err != nil {
		tb.Fatal(err)
	}
	return token + "." + encode(signature)
}

// Kubeconfig writes a file with which a client is the account, and returns
// its path.
func (a *Account) Kubeconfig(tb testing.TB) string {
	tb.Helper()
	config := rest.AnonymousClientConfig(a.c.Config)
	config.BearerToken = a.Token(tb)
	return a.c.kubeconfig(tb, config)
}

// KubeconfigTokenFile is Kubeconfig by way of a relay, with the token in a file
// of its own.
func (a *Account) KubeconfigTokenFile(tb testing.TB, r *Relay, token string) string {
	tb.Helper()
	config := rest.AnonymousClientConfig(a.c.Config)
	config.Host = "https://" + r.addr
	config.BearerTokenFile = token
	return a.c.kubeconfig(tb, config)
}

// InCluster puts the account's files where pods find theirs, and returns the
// environment that pods have. There is one such place for all tests.
func (a *Account) InCluster(tb testing.TB) []string {
	tb.Helper()
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	for name, content := range map[string]string{
		"token":     a.Token(tb),
		"ca.crt":    string(a.c.Config.CAData),
		"namespace": a.Namespace,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return []string{"KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=" + a.c.port}
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.file("kubeconfig") }

func (c *Cluster) kubeconfig(tb testing.TB, config *rest.Config) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := writeKubeconfig(path, config); err != nil {
		tb.Fatal(err)
	}
	return path
}

func writeKubeconfig(path string, config *rest.Config) error {
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{
			"kube": {Server: config.Host, CertificateAuthorityData: config.CAData},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			"user": {Token: config.BearerToken, TokenFile: config.BearerTokenFile},
		},
		Contexts:       map[string]*clientcmdapi.Context{"kube": {Cluster: "kube", AuthInfo: "user"}},
		CurrentContext: "kube",
	}, path)
}

// An Act is something that a service account did, as the audit log has it.
type Act struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	RequestObject  json.RawMessage `json:"requestObject"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Stage string `json:"stage"`
}

// Acts returns what the account did so far. A watch is there when it starts
// and again when it ends, with the stages that the API server calls
// ResponseStarted and ResponseComplete.
func (a *Account) Acts(tb testing.TB) []Act {
	tb.Helper()
	file, err := os.Open(a.c.file("audit.log"))
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var acts []Act
	for lines := bufio.NewReader(file); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return acts // the last line may not be whole yet
		}
		if !strings.Contains(line, `"`+a.User()+`"`) {
			continue
		}
		acts = append(acts, harness.Decode[Act](tb, []byte(line)))
	}
}

// Watches returns how many watches of each resource the account has open now,
// by the names of resources and namespaces, as in "endpointslices/models".
func (a *Account) Watches(tb testing.TB) map[string]int {
	tb.Helper()
	open := make(map[string]int)
	for _, act := range a.Acts(tb) {
		name := act.ObjectRef.Resource + "/" + act.ObjectRef.Namespace
		switch {
		case act.Verb != "watch" || act.ResponseStatus.Code != 200:
		case act.Stage == "ResponseStarted":
			open[name]++
		case act.Stage == "ResponseComplete":
			open[name]--
		}
	}
	return open
}
