package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

func TestBodiesAreChats(t *testing.T) {
	for _, size := range []int{minBody, 2048, 5000, 100 << 10} {
		seen := make(map[string]bool)
		for i := range 20 {
			b := makeBody(i, size)
			if len(b) != size {
				t.Fatalf("body of chat %d has %d bytes, want %d", i, len(b), size)
			}
			var body struct {
				Model    string
				Messages []struct{ Role, Content string }
			}
			if err := json.Unmarshal(b, &body); err != nil {
				t.Fatalf("size %d, chat %d: %v\n%s", size, i, err, b)
			}
			if body.Model != modelName || len(body.Messages) < 2 || body.Messages[0].Role != "system" {
				t.Fatalf("size %d, chat %d: not a chat: %s", size, i, b)
			}
			// The keys that proxies route by are bounded: the chats differ early.
			seen[body.Messages[0].Content] = true
			if last := body.Messages[len(body.Messages)-1]; size > 4096 && last.Role == "" {
				t.Errorf("the last message has no role")
			}
		}
		if len(seen) != 20 {
			t.Errorf("size %d: %d system prompts among 20 chats", size, len(seen))
		}
	}
}

func TestReadHead(t *testing.T) {
	for _, tc := range []struct{ name, message, rest string }{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcXYZ", "XYZ"},
		{"none", "HTTP/1.1 204 No Content\r\nA: b\r\n\r\nXYZ", "XYZ"},
		{"chunked", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nXYZ", "XYZ"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			br := bufio.NewReader(strings.NewReader(tc.message))
			h, err := readHead(br)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.discardBody(br); err != nil {
				t.Fatal(err)
			}
			rest, _ := br.ReadString(0)
			if rest != tc.rest {
				t.Errorf("after the message comes %q, want %q", rest, tc.rest)
			}
		})
	}
}

func TestLoopbackAddressesDiffer(t *testing.T) {
	seen := make(map[string]bool)
	for _, a := range loopback(1000, 80) {
		seen[a] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d addresses, want 1000", len(seen))
	}
}

func TestCPUTimeCountsThisProcess(t *testing.T) {
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
	}
	after, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after <= before {
		t.Errorf("100 ms of work took %v of CPU time", after-before)
	}
}

func TestMemoryOfThisProcess(t *testing.T) {
	m, err := memoryOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if m.now < 1<<20 || m.peak < m.now {
		t.Errorf("this process has %d bytes resident, and had %d at most", m.now, m.peak)
	}
}

func TestReport(t *testing.T) {
	round := func(cpu, took time.Duration) *sample {
		return &sample{requests: 1000, took: took, cpu: cpu, p50: time.Millisecond, p99: 2 * time.Millisecond}
	}
	c := &result{Size: 2048, Endpoints: 3, Proxies: []*measured{
		{Name: nameGateway, samples: []*sample{round(100*time.Millisecond, time.Second), round(120*time.Millisecond, 2*time.Second), round(90*time.Millisecond, time.Second)}},
		{Name: nameStock, samples: []*sample{round(100*time.Millisecond, time.Second), round(100*time.Millisecond, 2*time.Second), round(100*time.Millisecond, time.Second)}},
	}}
	r := newReport(&options{rounds: 3}, []*result{c})
	g := c.proxy(nameGateway)
	if g.CPU != 100 || g.Rate != 1000 || g.ToStock.CPU != 1.0 || g.ToStock.Rate != 1.0 {
		t.Errorf("medians: %+v, ratios %+v", g, g.ToStock)
	}
	if len(r.Targets) != 3 || !r.Met {
		t.Errorf("targets: %+v", r.Targets)
	}
	var out bytes.Buffer
	r.write(&out)
	if !strings.Contains(out.String(), "gateway") || strings.Contains(out.String(), "MISSED") {
		t.Errorf("report:\n%s", out.String())
	}
}
