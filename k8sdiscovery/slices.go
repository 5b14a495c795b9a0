package k8sdiscovery

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// serviceOf returns the namespace and the name of the Service that an
// EndpointSlice belongs to, "" if it is none's.
func serviceOf(o metav1.Object) string {
	if service := o.GetLabels()[discoveryv1.LabelServiceName]; service != "" {
		return o.GetNamespace() + "/" + service
	}
	return all
}

// trimSlice drops from an EndpointSlice what makes no difference to its
// endpoints.
func trimSlice(o metav1.Object) {
	s := o.(*discoveryv1.EndpointSlice)
	s.Annotations, s.OwnerReferences = nil, nil
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.Hints, e.DeprecatedTopology, e.Hostname = nil, nil, nil
	}
}

// sliceBuilder returns a function that makes endpoints of EndpointSlices, at the
// port with this name or number, and says what is wrong with them.
func sliceBuilder(port string, a Attributes) func([]metav1.Object) ([]routing.Spec, []string) {
	return func(objects []metav1.Object) ([]routing.Spec, []string) {
		var found []candidate
		var warnings []string
		for _, o := range objects {
			s := o.(*discoveryv1.EndpointSlice)
			if s.AddressType == discoveryv1.AddressTypeFQDN {
				warnings = append(warnings, fmt.Sprintf("the EndpointSlices of %s hold host names, which are passed over; name the host in the model's block instead: to <host:port>", ownerOf(s)))
				continue
			}
			if len(s.Endpoints) == 0 {
				continue // and perhaps no ports
			}
			at, scheme, ok := choosePort(s.Ports, port)
			if !ok {
				warnings = append(warnings, noPort(s, port))
				continue
			}
			odd := netip.Addr{}
			for i := range s.Endpoints {
				c, ok := candidateOf(&s.Endpoints[i])
				switch {
				case !ok:
				case isOfPod(c.ip):
					c.port, c.scheme = at, scheme
					found = append(found, c)
				case !odd.IsValid():
					odd = c.ip
				}
			}
			if odd.IsValid() {
				warnings = append(warnings, noPod("the EndpointSlices of "+ownerOf(s)+" hold", odd.String()))
			}
		}
		return specsOf(found, a), warnings
	}
}

// candidateOf returns the candidate that an endpoint of a slice makes, without
// its port.
func candidateOf(e *discoveryv1.Endpoint) (c candidate, ok bool) {
	ready := orTrue(e.Conditions.Ready)
	if t := e.Conditions.Terminating; t != nil && *t {
		c.leaving = true
		ready = e.Conditions.Serving == nil && ready || e.Conditions.Serving != nil && *e.Conditions.Serving
	}
	if !ready || len(e.Addresses) == 0 {
		return c, false
	}
	// The addresses of one endpoint are interchangeable, and the first is the
	// one to use.
	if c.ip, ok = parseIP(e.Addresses[0]); !ok {
		return c, false
	}
	if ref := e.TargetRef; ref != nil {
		c.uid = ref.UID
		if ref.Kind == "Pod" {
			c.isPod, c.pod = true, ref.Name
		}
	}
	if e.NodeName != nil {
		c.node = *e.NodeName
	}
	if e.Zone != nil {
		c.zone = *e.Zone
	}
	return c, true
}

func orTrue(b *bool) bool { return b == nil || *b }

// choosePort returns the TCP port that is asked for by its name or number: that
// named http, or else the first, if it is by neither.
func choosePort(ports []discoveryv1.EndpointPort, asked string) (number int, scheme string, ok bool) {
	n, err := strconv.Atoi(asked)
	byNumber := err == nil
	name := asked
	if asked == "" {
		name = "http"
	}
	var chosen *discoveryv1.EndpointPort
	for i := range ports {
		p := &ports[i]
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			continue
		}
		switch {
		case byNumber && (p.Port == nil || int(*p.Port) == n): // without a number it is any
			return n, schemeOf(p), true
		case byNumber || p.Port == nil:
		case p.Name != nil && *p.Name == name:
			return int(*p.Port), schemeOf(p), true
		case asked == "" && chosen == nil:
			chosen = p
		}
	}
	if chosen == nil {
		return 0, "", false
	}
	return int(*chosen.Port), schemeOf(chosen), true
}

// schemeOf returns the scheme that a port's appProtocol stands for.
func schemeOf(p *discoveryv1.EndpointPort) string {
	if p.AppProtocol == nil {
		return ""
	}
	switch *p.AppProtocol {
	case "https":
		return "https"
	case "kubernetes.io/h2c":
		return "h2c"
	}
	return ""
}

// ownerOf returns the name of a slice's Service, or else its own.
func ownerOf(s *discoveryv1.EndpointSlice) string {
	return cmp.Or(s.Labels[discoveryv1.LabelServiceName], s.Name)
}

// noPort says that a slice has no port as it is asked for.
func noPort(s *discoveryv1.EndpointSlice, asked string) string {
	var has []string
	for _, p := range s.Ports {
		var words []string
		if p.Name != nil && *p.Name != "" {
			words = append(words, *p.Name)
		}
		if p.Port != nil {
			words = append(words, strconv.Itoa(int(*p.Port)))
		}
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			words = append(words, "("+string(*p.Protocol)+")")
		}
		has = append(has, strings.Join(words, " "))
	}
	slices.Sort(has)
	ports := "none"
	if len(has) > 0 {
		ports = strings.Join(has, ", ")
	}
	service := ownerOf(s)
	if asked == "" {
		return fmt.Sprintf("the EndpointSlices of %s have no TCP port, so its endpoints are passed over; their ports: %s", service, ports)
	}
	return fmt.Sprintf("the EndpointSlices of %s have no TCP port %s, so its endpoints are passed over; write one of the pods' ports: %s", service, asked, ports)
}
