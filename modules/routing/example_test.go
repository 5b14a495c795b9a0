package routing_test

import (
	"fmt"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// Nearest is a strategy by a third party: it prefers endpoints in the client's
// region, and of those the one with the fewest calls in flight. As a Caddy
// module it would also have the methods CaddyModule, with an ID such as
// flexinfer.strategies.nearest, and UnmarshalCaddyfile.
type Nearest struct{}

// Pick implements [routing.Strategy].
func (Nearest) Pick(req *routing.Request, s *routing.Snapshot) routing.Decision {
	region := req.Header.Get("X-Region")
	for range 100 { // calls that pick at the same time change the loads
		best, near, load := -1, false, 0
		for i := range s.Len() {
			if !s.Usable(req, i) {
				continue
			}
			n, l := s.At(i).Labels["region"] == region, s.Load(i)
			if best < 0 || n && !near || n == near && l < load {
				best, near, load = i, n, l
			}
		}
		if best < 0 {
			return routing.Decision{} // the gateway knows what to do
		}
		// Count the call and take the endpoint in one step, if its load
		// is still what the choice was made by.
		if lease := s.TryAcquire(best, load); lease != nil {
			return routing.Decision{Lease: lease, Reason: "nearest"}
		}
	}
	return routing.Decision{}
}

// A strategy is tested with a table of endpoints, without a server.
func ExampleStrategy() {
	s := routing.NewSnapshot("qwen3-8b",
		routing.Spec{Scheme: "http", Address: "10.0.0.5:8000", Labels: map[string]string{"region": "eu"}},
		routing.Spec{Scheme: "http", Address: "10.0.0.6:8000", Labels: map[string]string{"region": "eu"}},
		routing.Spec{Scheme: "http", Address: "10.1.0.5:8000", Labels: map[string]string{"region": "us"}},
	)
	pick := func(region string, tried ...string) *routing.Lease {
		req := &routing.Request{Keys: routing.FixedKeys{}, Model: "qwen3-8b", Header: map[string][]string{"X-Region": {region}}, Tried: tried}
		return Nearest{}.Pick(req, s).Lease
	}
	first := pick("eu")
	fmt.Println(first.Endpoint().Target(), "load", first.Endpoint().Load())
	second := pick("eu")
	fmt.Println(second.Endpoint().Target(), "load", second.Endpoint().Load())

	// The attempt fails, and the call goes elsewhere.
	second.Release()
	fmt.Println(pick("eu", second.Endpoint().ID, first.Endpoint().ID).Endpoint().Target())

	first.Activate() // the attempt dials …
	first.Release()  // … and ends
	fmt.Println("load", first.Endpoint().Load())
	// Output:
	// 10.0.0.5:8000 load 1
	// 10.0.0.6:8000 load 1
	// 10.1.0.5:8000
	// load 0
}
