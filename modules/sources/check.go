package sources

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// maxNameLength is the longest name of a model, in bytes.
const maxNameLength = 256

// CheckName returns an error if name cannot be the name of a model.
func CheckName(name string) error {
	if err := checkText(name); err != nil {
		return err
	}
	switch {
	case strings.ContainsRune(name, '\\'), slices.ContainsFunc(strings.Split(name, "/"), func(s string) bool { return s == "" || s == "." || s == ".." }):
		return fmt.Errorf("the name %q could not be asked for by path: it holds a backslash, or an empty, . or .. segment", name)
	case name == "_unknown":
		return errors.New("the name _unknown stands for all unknown models in metrics")
	}
	return nil
}

// checkText returns an error if name is no one's name of a model.
func checkText(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > maxNameLength:
		return fmt.Errorf("the name %.32q… has %d bytes; the longest has %d", name, len(name), maxNameLength)
	case !utf8.ValidString(name):
		return fmt.Errorf("the name %q is not UTF-8", name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the name %q holds a control character", name)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("the name %q starts or ends with white space", name)
	}
	return nil
}

// CheckUpstreamModel returns an error if name cannot be what an upstream knows a
// model by. Engines may take the path of a file for it.
func CheckUpstreamModel(name string) error {
	if err := checkText(name); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

// CheckWeight returns an error if an upstream cannot have that weight.
func CheckWeight(weight int) error {
	if weight < 1 || weight > 100 {
		return fmt.Errorf("weight is %d; write a number from 1 to 100", weight)
	}
	return nil
}

// reservedHeaders are the fields that belong to a connection or an exchange,
// not to an upstream.
var reservedHeaders = []string{
	"Connection", "Content-Length", "Expect", "Keep-Alive", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// CheckHeader returns an error if an upstream cannot have that header field
// with that value.
func CheckHeader(field, value string) error {
	canonical := http.CanonicalHeaderKey(field)
	switch {
	case !httpguts.ValidHeaderFieldName(field):
		return fmt.Errorf("%q is not the name of a header field", field)
	case canonical == "Host":
		return errors.New("an upstream's header cannot set Host; write header_up Host in the site")
	case slices.Contains(reservedHeaders, canonical):
		return fmt.Errorf("header %s belongs to the connection and cannot be set", canonical)
	case !httpguts.ValidHeaderFieldValue(value):
		// not shown: it may be a secret
		return fmt.Errorf("header %s: the value holds a line break or another control character", canonical)
	}
	return nil
}

// ParseAddress reads an upstream's address: host:port, or a URL of scheme
// http, https or h2c with an optional base path.
func ParseAddress(address string) (routing.Spec, error) {
	switch {
	case strings.Contains(address, "@"):
		// not shown: what stands before the @ is a secret
		return routing.Spec{}, errors.New(`an address holds no credentials; they go into a header: header Authorization "Bearer {env.KEY}"`)
	case strings.ContainsAny(address, "{}"):
		return routing.Spec{}, fmt.Errorf("address %q: placeholders are not replaced here; in a Caddyfile {$NAME} is, when the file is read", address)
	case strings.HasPrefix(address, "unix/"), strings.HasPrefix(address, "unix+"), strings.HasPrefix(address, "unix:"), strings.HasPrefix(address, "fd/"):
		return routing.Spec{}, fmt.Errorf("address %q: an upstream is reached over TCP only; let the engine listen on host:port", address)
	}
	scheme, path, host := "http", "", address
	if strings.Contains(address, "://") {
		u, err := url.Parse(address)
		if err != nil {
			if parseErr, ok := errors.AsType[*url.Error](err); ok {
				err = parseErr.Err
			}
			return routing.Spec{}, fmt.Errorf("address %q: %w", address, err)
		}
		if scheme, host, err = splitURL(u); err != nil {
			return routing.Spec{}, fmt.Errorf("address %q: %w", address, err)
		}
		path = strings.TrimRight(u.EscapedPath(), "/")
		if err := checkBasePath(path); err != nil {
			return routing.Spec{}, fmt.Errorf("address %q: %w", address, err)
		}
	} else if strings.Contains(address, "/") {
		return routing.Spec{}, fmt.Errorf("address %q: a path needs a scheme in front; write a URL, such as http://%s/base", address, exampleHost(address))
	}
	hostport, err := normalizeHostPort(host)
	if err != nil {
		return routing.Spec{}, fmt.Errorf("address %q: %w", address, err)
	}
	return routing.Spec{Scheme: scheme, Address: hostport, Path: path}, nil
}

// splitURL returns the scheme and the host with its port.
func splitURL(u *url.URL) (scheme, host string, err error) {
	port := "80"
	switch u.Scheme {
	case "http", "h2c":
	case "https":
		port = "443"
	default:
		return "", "", fmt.Errorf("unknown scheme %s; write http://, https:// or h2c://", u.Scheme)
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", "", errors.New("an address has no query and no fragment")
	}
	if u.Port() == "" && !strings.HasSuffix(u.Host, ":") {
		return u.Scheme, net.JoinHostPort(u.Hostname(), port), nil
	}
	return u.Scheme, u.Host, nil
}

// checkBasePath returns an error if no request would find its way below path.
func checkBasePath(path string) error {
	segments := strings.Split(path, "/")
	if slices.Contains(segments, "..") || slices.Contains(segments, ".") {
		return errors.New("a base path has no . or .. in it")
	}
	if segments[len(segments)-1] == "v1" {
		return errors.New("requests bring their own /v1; leave it out of the address")
	}
	return nil
}

// normalizeHostPort returns the one spelling of host:port under which an
// endpoint is known.
func normalizeHostPort(hostport string) (string, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil || host == "" || port == "" {
		example := exampleHost(hostport)
		return "", fmt.Errorf("write host:port, such as %s:8000, or a URL, such as http://%s", example, example)
	}
	if strings.Contains(port, "-") {
		return "", fmt.Errorf("%s is a range of ports; write each address on its own", port)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("port %s is not a number from 1 to 65535", port)
	}
	port = strconv.FormatUint(n, 10)
	if ip, err := netip.ParseAddr(host); err == nil {
		return net.JoinHostPort(ip.String(), port), nil // one spelling for each IPv6 address
	}
	if strings.ContainsFunc(host, notInHostName) {
		return "", fmt.Errorf("%q is not a host name (for one in other letters than a to z write its xn-- form)", host)
	}
	return net.JoinHostPort(strings.ToLower(host), port), nil
}

func notInHostName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
}

// exampleHost makes a plausible host out of what was written for one.
func exampleHost(hostport string) string {
	if ip, err := netip.ParseAddr(hostport); err == nil && ip.Is6() {
		return "[" + hostport + "]"
	}
	host, _, _ := strings.Cut(hostport, "/")
	host, _, _ = strings.Cut(host, ":")
	if host == "" || host == "http" || host == "https" || strings.ContainsFunc(host, notInHostName) {
		return "10.0.0.5"
	}
	return host
}
