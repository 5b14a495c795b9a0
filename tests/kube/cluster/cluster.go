// Package cluster runs a Kubernetes control plane for tests: etcd, the API
// server and the controller manager as they are, on loopback addresses in a
// network namespace of the tests' own. Of what a cluster has besides, there is
// a [Kubelet] that plays pods with simulated engines, and DNS for the names of
// Services. There is no kube-proxy.
package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A Cluster is a running control plane.
type Cluster struct {
	// Client and Dynamic may do everything.
	Client  *kubernetes.Clientset
	Dynamic *dynamic.DynamicClient
	Config  *rest.Config

	bin, dir string
	key      *rsa.PrivateKey // signs the tokens of service accounts
	token    string          // the administrator's
	etcd     string          // its address
	port     string          // of the API server

	etcdProcess, apiProcess, controllers *process
}

// startup is how long a part of the control plane may take to work.
const startup = 2 * time.Minute

// start starts a cluster of the programs in the folder bin, which keeps its
// files in dir.
func start(bin, dir string) (c *Cluster, err error) {
	c = &Cluster{bin: bin, dir: dir, token: rand.Text()}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	if err := c.prepare(); err != nil {
		return nil, err
	}
	if err := c.startEtcd(); err != nil {
		return nil, err
	}
	if err := c.startAPI(); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	if err := c.startDNS(); err != nil {
		return nil, err
	}
	return c, c.startControllers()
}

// stop ends what runs, the last first.
func (c *Cluster) stop() {
	for _, p := range []*process{c.controllers, c.apiProcess, c.etcdProcess} {
		if p != nil {
			p.stop()
		}
	}
}

// prepare writes the files that the control plane starts from.
func (c *Cluster) prepare() (err error) {
	if c.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		return err
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(c.key)})
	for name, content := range map[string]string{
		"sa.key":     string(key),
		"tokens.csv": c.token + ",admin,admin,system:masters\n",
		"audit.yaml": auditPolicy,
	} {
		if err := os.WriteFile(c.file(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	c.port, err = freePort()
	return err
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) startEtcd() error {
	clients, err := freePort()
	if err != nil {
		return err
	}
	peers, err := freePort()
	if err != nil {
		return err
	}
	c.etcd = "http://127.0.0.1:" + clients
	peer := "http://127.0.0.1:" + peers
	c.etcdProcess, err = startProcess(c.dir, filepath.Join(c.bin, "etcd"),
		"--name=default", "--data-dir="+c.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+c.etcd, "--advertise-client-urls="+c.etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	if err != nil {
		return err
	}
	return c.etcdProcess.await("listens", func() bool {
		conn, err := net.DialTimeout("tcp", "127.0.0.1:"+clients, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func (c *Cluster) startAPI() (err error) {
	c.apiProcess, err = startProcess(c.dir, filepath.Join(c.bin, "kube-apiserver"),
		"--etcd-servers="+c.etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+c.port, "--cert-dir="+c.file("certs"),
		"--endpoint-reconciler-type=none", // it cannot publish a loopback address
		"--service-cluster-ip-range=10.96.0.0/16,fd96::/112",
		"--authorization-mode=RBAC", "--token-auth-file="+c.file("tokens.csv"),
		"--service-account-issuer="+issuer,
		"--service-account-signing-key-file="+c.file("sa.key"), "--service-account-key-file="+c.file("sa.key"),
		"--audit-policy-file="+c.file("audit.yaml"), "--audit-log-path="+c.file("audit.log"))
	if err != nil {
		return err
	}
	return c.apiProcess.await("is ready", c.apiReady)
}

// apiReady asks anew each time, with a client of its own: the certificate is
// made when the API server starts for the first time.
func (c *Cluster) apiReady() bool {
	ca, err := os.ReadFile(c.file("certs/apiserver.crt"))
	if err != nil {
		return false
	}
	c.Config = &rest.Config{
		Host:            "https://127.0.0.1:" + c.port,
		BearerToken:     c.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		QPS:             -1, // no limit
	}
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
}

func (c *Cluster) connect() (err error) {
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		return err
	}
	return writeKubeconfig(c.file("kubeconfig"), c.Config)
}

func (c *Cluster) startControllers() (err error) {
	c.controllers, err = startProcess(c.dir, filepath.Join(c.bin, "kube-controller-manager"),
		"--kubeconfig="+c.file("kubeconfig"), "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0",
		"--service-account-private-key-file="+c.file("sa.key"), "--root-ca-file="+c.file("certs/apiserver.crt"),
		"--controllers=deployment-controller,replicaset-controller,endpointslice-controller,serviceaccount-controller,"+
			"namespace-controller,garbage-collector-controller,root-ca-certificate-publisher-controller")
	if err != nil {
		return err
	}
	// Without its service account a namespace takes no pods.
	return c.controllers.await("works", func() bool { return c.hasAccount(context.Background(), "default") })
}

func (c *Cluster) hasAccount(ctx context.Context, namespace string) bool {
	_, err := c.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
	return err == nil
}

// KillAPI ends the API server at once. It is started again at the end of the
// test, unless StartAPI has done that.
func (c *Cluster) KillAPI(tb testing.TB) {
	tb.Helper()
	c.apiProcess.kill()
	tb.Cleanup(func() {
		if c.apiProcess.ended() {
			c.StartAPI(tb)
		}
	})
}

// StartAPI starts the API server again, at the address and with the state that
// it had, and waits until it is ready.
func (c *Cluster) StartAPI(tb testing.TB) {
	tb.Helper()
	if err := c.startAPI(); err != nil {
		tb.Fatal(err)
	}
}

// PauseAPI stops the API server from doing anything: connections stay open, and
// nothing comes on them. The function that it returns lets it go on.
func (c *Cluster) PauseAPI(tb testing.TB) (resume func()) {
	tb.Helper()
	return c.apiProcess.pause(tb)
}

// Addr returns the address of the API server.
func (c *Cluster) Addr() string { return "127.0.0.1:" + c.port }

// ignoreExists is for what may be there already.
func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// freePort returns a port on which nothing listens. The tests are alone in
// their network.
func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(ln.Addr().String())
	return port, errors.Join(err, ln.Close())
}

const issuer = "https://kubernetes.default.svc"

// auditPolicy has written down what service accounts do.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Request
  userGroups: [system:serviceaccounts]
- level: None
`
