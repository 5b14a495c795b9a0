package k8sdiscovery

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// A candidate is an address that may become an endpoint.
type candidate struct {
	uid     types.UID // of the pod or whatever is behind the address; "" if not known
	isPod   bool
	pod     string // its name, if it is a pod
	node    string
	zone    string
	ip      netip.Addr
	port    int
	scheme  string
	leaving bool // it terminates, and serves as long as it has to
}

// compare orders the candidates: for one pod the first stands for it.
func (c candidate) compare(o candidate) int {
	return cmp.Or(
		compareBool(c.ip.Is6(), o.ip.Is6()), // IPv4 first
		compareBool(c.leaving, o.leaving),
		c.ip.Compare(o.ip),
		cmp.Compare(c.port, o.port),
		cmp.Compare(o.uid, c.uid), // one that has a UID first
		cmp.Compare(c.scheme, o.scheme),
		cmp.Compare(c.pod, o.pod),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// specsOf returns the endpoints that the candidates make: one for each UID and
// for each address. Those that leave are taken only when there is no other.
func specsOf(found []candidate, a Attributes) []routing.Spec {
	slices.SortFunc(found, candidate.compare)
	uids := make(map[types.UID]struct{}, len(found))
	addresses := make(map[netip.AddrPort]struct{}, len(found))
	var staying, leaving []routing.Spec
	for _, c := range found {
		at := netip.AddrPortFrom(c.ip, uint16(c.port)) //nolint:gosec // checked where it was found
		_, known := addresses[at]
		if c.uid != "" && !known {
			_, known = uids[c.uid]
			uids[c.uid] = struct{}{}
		}
		if known {
			continue
		}
		addresses[at] = struct{}{}
		if c.leaving {
			leaving = append(leaving, c.spec(a))
		} else {
			staying = append(staying, c.spec(a))
		}
	}
	if len(staying) > 0 {
		return staying
	}
	return leaving
}

// maxUID is the longest UID that is believed, in bytes; those of the API server
// have 36.
const maxUID = 64

// identity returns what tells the endpoint from others: the pod and its address
// together, whichever Service and port lead there; "" if it is no pod. Whoever
// writes an EndpointSlice can give any address the UID of somebody else's pod,
// and must not be taken for that one.
func (c candidate) identity() string {
	if !c.isPod || c.uid == "" || len(c.uid) > maxUID || strings.ContainsAny(string(c.uid), "/:") { // which URLs have
		return ""
	}
	return string(c.uid) + "/" + c.ip.String()
}

// spec returns the endpoint that c makes.
func (c candidate) spec(a Attributes) routing.Spec {
	s := routing.Spec{
		ID: c.identity(), Scheme: cmp.Or(c.scheme, "http"), Address: net.JoinHostPort(c.ip.String(), strconv.Itoa(c.port)),
		Model: a.Model, Weight: a.Weight, Header: a.Header, MaxInflight: a.MaxInflight,
		Labels: make(map[string]string, 4+len(a.Labels)),
	}
	for _, l := range [...]struct{ name, value string }{{"pod", c.pod}, {"node", c.node}, {"zone", c.zone}, {"role", a.Role}} {
		if l.value != "" {
			s.Labels[l.name] = cut(l.value, maxMessage)
		}
	}
	maps.Copy(s.Labels, a.Labels)
	return s
}

// parseIP returns the one spelling of an address.
func parseIP(s string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(s)
	return ip.Unmap(), err == nil
}

// isOfPod reports whether ip, as parseIP has returned it, may be an address of
// a pod. Who writes an EndpointSlice, or a pod's status, is not to lead calls to
// the gateway itself, or to what its node alone can reach.
func isOfPod(ip netip.Addr) bool {
	return ip.Zone() == "" && !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !ip.IsMulticast() &&
		!(ip.Is4() && (ip.As4()[0] == 0 || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255})))
}

// noPod says that what holds an address has one that is no pod's.
func noPod(holder, address string) string {
	return fmt.Sprintf("%s the address %.64s, which is passed over: it is unspecified, loopback, link-local or multicast, none of which is a pod's", holder, address)
}
