package sources

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

// newSource provisions a source over the engines' addresses.
func (es *engines) newSource(addresses ...string) *UpstreamModels {
	es.t.Helper()
	s := &UpstreamModels{dial: es.dial}
	for _, a := range addresses {
		s.Upstreams = append(s.Upstreams, Upstream{Address: a})
	}
	provisionSource(es.t, s)
	return s
}

func provisionSource(t *testing.T, s *UpstreamModels) {
	t.Helper()
	if err := s.Provision(caddy.Context{Context: t.Context()}); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, s *UpstreamModels) {
	t.Helper()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}

func cleanup(t *testing.T, s *UpstreamModels) {
	t.Helper()
	if err := s.Cleanup(); err != nil {
		t.Fatal(err)
	}
}

// show puts models in a line: "m1@a,b m2@b".
func show(s routing.Source) string {
	models, _ := s.Models()
	var words []string
	for _, m := range models {
		var hosts []string
		for _, e := range m.Endpoints {
			hosts = append(hosts, strings.TrimSuffix(e.Address, ":80"))
		}
		words = append(words, m.Name+"@"+strings.Join(hosts, ","))
	}
	return strings.Join(words, " ")
}

func expect(t *testing.T, s *UpstreamModels, want string) {
	t.Helper()
	if got := show(s); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestEachModelIsServedByThoseThatListIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := newEngines(t, map[string]http.HandlerFunc{
			"a:80": lists("m2", "m1", "m2"), "b:80": lists("m3", "m2"), "c:80": lists(),
		})
		s := es.newSource("b:80", "a:80", "c:80")
		defer cleanup(t, s)
		if s.Settled() {
			t.Error("settled before anyone was asked")
		}
		_, changed := s.Models()
		start(t, s)
		synctest.Wait()
		if !isClosed(changed) {
			t.Error("nobody was told of the change")
		}
		if !s.Settled() {
			t.Error("not settled though all have answered")
		}
		expect(t, s, "m1@a m2@b,a m3@b")
	})
}

// A gateway that starts before all of its engines is not ready at once.
func TestNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := newEngines(t, map[string]http.HandlerFunc{"a:80": lists("m1"), "b:80": lists("m1")})
		es.on["a:80"].set(true, nil)
		es.on["b:80"].set(true, nil)
		s := es.newSource("a:80", "b:80")
		defer cleanup(t, s)
		start(t, s)
		time.Sleep(settleTime - time.Second)
		synctest.Wait()
		if s.Settled() {
			t.Error("settled without an answer")
		}
		time.Sleep(settleTime)
		synctest.Wait()
		if !s.Settled() {
			t.Error("never settles")
		}
		es.on["a:80"].set(false, lists("m1"))
		time.Sleep(defaultPollInterval)
		synctest.Wait()
		expect(t, s, "m1@a")
	})
}

func TestOutageKeepsTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := newEngines(t, map[string]http.HandlerFunc{"a:80": lists("m1"), "b:80": lists("m1", "m2")})
		s := es.newSource("a:80", "b:80")
		defer cleanup(t, s)
		start(t, s)
		synctest.Wait()
		_, changed := s.Models()

		for _, outage := range []struct {
			down   bool
			answer http.HandlerFunc
		}{
			{down: true},
			{answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }},
			{answer: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>starting") }},
		} {
			es.on["b:80"].set(outage.down, outage.answer)
			time.Sleep(defaultPollInterval)
			synctest.Wait()
			expect(t, s, "m1@a,b m2@b")
		}
		if isClosed(changed) {
			t.Error("a change was announced that was none")
		}

		es.on["b:80"].set(false, lists("m2", "m3"))
		time.Sleep(defaultPollInterval)
		synctest.Wait()
		if !isClosed(changed) {
			t.Error("nobody was told of the change")
		}
		expect(t, s, "m1@a m2@b m3@b")
	})
}

func TestAskingTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := newEngines(t, map[string]http.HandlerFunc{"up:80": lists("m1"), "down:80": nil})
		es.on["down:80"].set(true, nil)
		s := es.newSource("up:80", "down:80")
		defer cleanup(t, s)
		start(t, s)
		synctest.Wait()
		if !s.Settled() {
			t.Error("one answer and one failure do not settle")
		}
		time.Sleep(61500 * time.Millisecond)
		synctest.Wait()
		if got, want := fmt.Sprint(es.on["up:80"].times()), "[0s 30s 1m0s]"; got != want {
			t.Errorf("an upstream that answers was asked at %s, want %s", got, want)
		}
		if got, want := fmt.Sprint(es.on["down:80"].times()), "[0s 500ms 1.5s 3.5s 7.5s 15.5s 31.5s 1m1.5s]"; got != want {
			t.Errorf("one that never answered was asked at %s, want %s", got, want)
		}
	})
}

func TestBadAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
	}{
		{"not JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }},
		{"empty", func(http.ResponseWriter, *http.Request) {}},
		{"null", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "null") }},
		{"array", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `[{"id": "m"}]`) }},
		{"no data", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"models": []}`) }},
		{"data of another type", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data": {"id": "m"}}`) }},
		{"id of another type", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data": [{"id": 7}]}`) }},
		{"cut short", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"data": [`)
		}},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://secret:80/", http.StatusFound)
		}},
		{"huge", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"data": [{"id": "`)
			for range 1024 {
				if _, err := fmt.Fprint(w, strings.Repeat("x", 8<<10)); err != nil {
					return
				}
			}
			fmt.Fprint(w, `"}]}`)
		}},
		{"slow header", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"slow body", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"data": [`)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				es := newEngines(t, map[string]http.HandlerFunc{"a:80": lists("m1"), "b:80": tt.answer})
				s := es.newSource("a:80", "b:80")
				defer cleanup(t, s)
				start(t, s)
				time.Sleep(pollTimeout)
				synctest.Wait()
				expect(t, s, "m1@a")
				if !s.Settled() {
					t.Error("a bad answer does not settle")
				}
			})
		})
	}
}

func TestOddNamesAreLeftOut(t *testing.T) {
	listed, err := readModelList(strings.NewReader(`{"data": [{"id": "b"}, {"id": ""}, {}, {"id": "a\nb"}, {"id": "` +
		strings.Repeat("x", 257) + `"}, {"id": "a"}, {"id": "b", "created": "yesterday"}]}`))
	if names := namesOf(listed); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("got %q, %v", names, err)
	}
	if listed, err = readModelList(strings.NewReader(`{"object": "list", "data": null}`)); err != nil || len(listed) != 0 {
		t.Errorf("an Ollama without models: got %v, %v", listed, err)
	}
}

func TestContextWindowsThatAreListed(t *testing.T) {
	for _, tt := range []struct {
		length string
		want   int
	}{
		{`32768`, 32768},
		{`2147483647`, 2147483647},
		{`0`, 0},
		{`-1`, 0},
		{`4294967296`, 0},
		{`99999999999999999999`, 0},
		{`1.5`, 0},
		{`"4096"`, 0},
		{`null`, 0},
		{`{"tokens": 1}`, 0},
	} {
		listed, err := readModelList(strings.NewReader(`{"data": [{"id": "m", "max_model_len": ` + tt.length + `}, {"id": "n"}]}`))
		if want := []Listed{{"m", tt.want}, {"n", 0}}; err != nil || !slices.Equal(listed, want) {
			t.Errorf("%s: got %v, %v, want %v", tt.length, listed, err, want)
		}
	}
}

func TestReloadNeitherForgetsNorAsksAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := newEngines(t, map[string]http.HandlerFunc{"a:80": lists("m1"), "b:80": lists("m2")})
		before := es.newSource("a:80")
		start(t, before)
		synctest.Wait()

		time.Sleep(10 * time.Second)
		failed := es.newSource("a:80", "b:80") // a configuration that does not start
		expect(t, failed, "m1@a")
		cleanup(t, failed)

		after := es.newSource("a:80", "b:80")
		expect(t, after, "m1@a")
		if after.Settled() {
			t.Error("settled though one was never asked")
		}
		start(t, after)
		cleanup(t, before)
		synctest.Wait()
		expect(t, after, "m1@a m2@b")
		expect(t, before, "m1@a") // for requests under way

		es.on["a:80"].set(false, lists("m3"))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		expect(t, after, "m2@b m3@a")
		expect(t, before, "m1@a")
		if got, want := fmt.Sprint(es.on["a:80"].times()), "[0s 30s]"; got != want {
			t.Errorf("asked at %s, want %s", got, want)
		}

		cleanup(t, after)
		synctest.Wait()
		time.Sleep(time.Hour)
		if n := len(es.on["a:80"].times()); n != 2 {
			t.Errorf("asked %d times after the last configuration left", n-2)
		}
	})
}

func TestIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := newEngines(t, map[string]http.HandlerFunc{"a:80": lists("m1")})
		hourly := es.newSource("a:80")
		hourly.Interval = caddy.Duration(time.Hour)
		start(t, hourly)
		time.Sleep(time.Minute)
		quick := es.newSource("a:80")
		quick.Interval = caddy.Duration(10 * time.Second)
		start(t, quick)
		time.Sleep(15 * time.Second)
		cleanup(t, quick)
		time.Sleep(10 * time.Minute)
		cleanup(t, hourly)
		if got, want := fmt.Sprint(es.on["a:80"].times()), "[0s 1m0s 1m10s 1m20s]"; got != want {
			t.Errorf("asked at %s, want %s", got, want)
		}
	})
}

func TestUpstreamsOfOneAddressWithOtherHeadersAreAskedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := newEngines(t, map[string]http.HandlerFunc{"a:80": func(w http.ResponseWriter, r *http.Request) {
			lists("model-of-"+r.Header.Get("Authorization"))(w, r)
		}})
		var all []*UpstreamModels
		for _, key := range []string{"k1", "k2"} {
			s := &UpstreamModels{dial: es.dial, Upstreams: []Upstream{{Address: "a:80", Headers: map[string]string{"Authorization": key}}}}
			provisionSource(t, s)
			start(t, s)
			all = append(all, s)
		}
		synctest.Wait()
		expect(t, all[0], "model-of-k1@a")
		expect(t, all[1], "model-of-k2@a")
		for _, s := range all {
			cleanup(t, s)
		}
	})
}

func TestValidateAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := newEngines(t, map[string]http.HandlerFunc{"a:80": lists("m1")})
		s := es.newSource("a:80")
		time.Sleep(time.Hour)
		cleanup(t, s)
		cleanup(t, s) // once more does no harm
		if n := len(es.on["a:80"].times()); n != 0 {
			t.Errorf("asked %d times without a start", n)
		}
	})
}

func TestSourceMayLeaveAtAnyMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := newEngines(t, map[string]http.HandlerFunc{"a:80": lists("m1"), "b:80": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }})
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				s := es.newSource("a:80", "b:80")
				start(t, s)
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				show(s)
				cleanup(t, s)
			})
		}
		wg.Wait() // synctest complains of goroutines that stay
	})
}

func TestUpstreamModelsErrors(t *testing.T) {
	for _, tt := range []struct{ name, config, remedy string }{
		{"none", `{}`, "no upstreams"},
		{"address", `{"upstreams": [{"address": "a:80"}, {"address": "b"}]}`, "such as b:8000"},
		{"twice", `{"upstreams": [{"address": "a:80"}, {"address": "A:80"}]}`, "listed twice"},
		{"model", `{"upstreams": [{"address": "a:80", "model": "m"}]}`, "those that it lists"},
		{"interval", `{"upstreams": [{"address": "a:80"}], "interval": "-1s"}`, "write a time above 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := provision(t, "flexinfer.sources.upstream_models", tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.remedy) {
				t.Errorf("got %v, want it to contain %q", err, tt.remedy)
			}
		})
	}
}

// TestSchemes asks real servers over each scheme.
func TestSchemes(t *testing.T) {
	check := func(proto int, w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != proto {
			t.Errorf("asked over %s", r.Proto)
		}
		http.StripPrefix("/base", lists("m1")).ServeHTTP(w, r)
	}
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { check(1, w, r) }))
	defer plain.Close()

	h2c := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { check(2, w, r) }))
	h2c.Config.Protocols = new(http.Protocols)
	h2c.Config.Protocols.SetUnencryptedHTTP2(true)
	h2c.Start()
	defer h2c.Close()

	encrypted := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { check(2, w, r) }))
	encrypted.EnableHTTP2 = true
	encrypted.StartTLS()
	defer encrypted.Close()

	for _, tt := range []struct{ name, address, want string }{
		{"http", plain.URL + "/base", "m1"},
		{"h2c", strings.Replace(h2c.URL, "http:", "h2c:", 1) + "/base", "m1"},
		{"https with a certificate of nobody", encrypted.URL + "/base", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &UpstreamModels{Upstreams: []Upstream{{Address: tt.address}}}
			provisionSource(t, s)
			defer cleanup(t, s)
			start(t, s)
			for !s.pollers[0].state().asked {
				runtime.Gosched()
			}
			if got, want := s.Settled(), tt.want != ""; got != want {
				t.Errorf("settled: %v", got)
			}
			models, _ := s.Models()
			var names []string
			for _, m := range models {
				names = append(names, m.Name)
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
