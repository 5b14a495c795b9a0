package strategies

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

const namespace = "flexinfer.strategies."

// parse reads `routing <input>` as a model's block does, and returns JSON.
func parse(input string) (string, error) {
	d := caddyfile.NewTestDispenser("routing " + input)
	d.Next()
	d.NextArg()
	unm, err := caddyfile.UnmarshalModule(d, namespace+strings.ReplaceAll(d.Val(), "-", "_"))
	if err != nil {
		return "", err
	}
	if v, ok := unm.(caddy.Validator); ok {
		if err := v.Validate(); err != nil {
			return "", err
		}
	}
	out, err := json.Marshal(unm)
	return string(out), err
}

func TestCaddyfile(t *testing.T) {
	for input, want := range map[string]string{
		"default":          `{}`,
		"round-robin":      `{}`,
		"least-loaded":     `{}`,
		"power-of-two":     `{}`,
		"soft-k-choice":    `{}`,
		"session-affinity": `{}`,
		"prefix":           `{}`,
		"prefix {\n}":      `{}`,
		"prefix {\nload_factor 1.5\nload_floor 8\nkeyless service\n}": `{"load_factor":1.5,"load_floor":8,"keyless":"service"}`,
		"prefix {\nload_factor 0\n}":                                  `{"load_factor":0}`,
		"session-affinity {\nkeyless least-loaded\nload_factor 1\n}":  `{"load_factor":1,"keyless":"least-loaded"}`,
		"soft-k-choice {\nk 3\n}":                                     `{"k":3}`,
	} {
		if got, err := parse(input); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", input, got, err, want)
		}
	}
}

// What is wrong is said with file, line and what to write.
func TestCaddyfileErrors(t *testing.T) {
	for input, want := range map[string]string{
		"prefix {\nload_factor 0.5\n}":                 "load_factor 0.5: write a number from 1 on, such as 1.25, or 0 for no bound, at Testfile:2",
		"prefix {\nload_factor -1\n}":                  "write a number from 1 on",
		"prefix {\nload_factor NaN\n}":                 "write a number from 1 on",
		"prefix {\nload_factor Inf\n}":                 "write a number from 1 on",
		"prefix {\nload_factor much\n}":                "load_factor much: write a number from 1 on",
		"prefix {\nload_factor\n}":                     "load_factor takes one value, at Testfile:2",
		"prefix {\nload_factor 1 2\n}":                 "load_factor takes one value",
		"prefix {\nload_floor 0\n}":                    "load_floor 0: write a whole number from 1 on, at Testfile:2",
		"prefix {\nload_floor -3\n}":                   "write a whole number from 1 on",
		"prefix {\nload_floor 1.5\n}":                  "write a whole number from 1 on",
		"prefix {\nload_floor 99999999999999999999\n}": "write a whole number from 1 on",
		"prefix {\nkeyless drop\n}":                    "keyless drop: write one of: least-loaded, service, at Testfile:2",
		"prefix {\n\nload 1\n}":                        "prefix has no option load; write one of: keyless, load_factor, load_floor, at Testfile:3",
		"prefix {\nload_floor 1\nload_floor 2\n}":      "load_floor is there twice, at Testfile:3",
		"prefix 1.25":                                  "prefix takes no arguments; its options are written in braces after it, at Testfile:1",
		"soft-k-choice {\nk 0\n}":                      "k 0: write a whole number from 1 on, at Testfile:2",
		"soft-k-choice {\nload_factor 1\n}":            "soft-k-choice has no option load_factor; write one of: k",
		"round-robin {\nweight 1\n}":                   "round-robin has no option weight, nor any other; leave out the braces",
		"least-loaded now":                             "least-loaded takes no arguments",
		"session-affinity {\nkeyless\n}":               "keyless takes one value",
	} {
		if got, err := parse(input); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, error %v; want %s", input, got, err, want)
		}
	}
}

// load provisions a strategy from JSON as the app does.
func load(t *testing.T, name, config string) (routing.Strategy, func(), error) {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	v, err := ctx.LoadModuleByID(namespace+name, json.RawMessage(config))
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return v.(routing.Strategy), cancel, nil
}

func TestJSON(t *testing.T) {
	for name, configs := range map[string]map[string]string{ // config → error
		"prefix": {
			`{}`:                               "",
			`{"load_factor":0}`:                "",
			`{"load_factor":1,"load_floor":1}`: "",
			`{"load_factor":0.9}`:              "load_factor 0.9: write a number from 1 on",
			`{"load_floor":-1}`:                "load_floor -1: it is 1 or more",
			`{"keyless":"x"}`:                  "keyless x: write one of: least-loaded, service",
			`{"load":1}`:                       "unknown field",
		},
		"session_affinity": {
			`{"keyless":"service"}`: "",
			`{"load_factor":-2}`:    "load_factor -2: write a number from 1 on",
			`{"keyless":"x"}`:       "keyless x",
		},
		"soft_k_choice": {`{"k":1}`: "", `{"k":-1}`: "k -1: it is 1 or more"},
		"round_robin":   {`{}`: ""},
		"default":       {`{}`: ""},
		"least_loaded":  {`{}`: ""},
		"power_of_two":  {`{}`: ""},
	} {
		for config, want := range configs {
			_, cancel, err := load(t, name, config)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s: error %v, want %q", name, config, err, want)
			}
			if cancel != nil {
				cancel()
			}
		}
	}
	if _, used := shared.References(sharedKey); used {
		t.Error("a configuration that failed, or ended, still uses the tables")
	}
}

// A reload keeps what is known of keys and chats; the last configuration to
// go takes it along.
func TestTablesOutliveReloads(t *testing.T) {
	one, stopOne, err := load(t, "prefix", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture("", even(8))
	chats := map[uint64]string{}
	for chat := uint64(1); chat <= 64; chat++ {
		chats[chat] = id(one.Pick(keyed(7, chat), f.Snapshot))
	}
	two, stopTwo, err := load(t, "prefix", `{"load_factor":1.5}`)
	if err != nil {
		t.Fatal(err)
	}
	stopOne()
	for chat := uint64(10); chat <= 64; chat++ {
		if got := id(two.Pick(later(7, chat), f.DryRun())); got != chats[chat] {
			t.Errorf("chat %d is at %s, was at %s", chat, got, chats[chat])
		}
	}
	if two.(*Prefix).heatOf(7).inflight.Load() != 64 {
		t.Error("calls in flight are forgotten")
	}
	if err := one.(*Prefix).Cleanup(); err != nil { // once is enough
		t.Error(err)
	}
	if n, _ := shared.References(sharedKey); n != 1 {
		t.Errorf("%d references", n)
	}
	stopTwo()
	if _, used := shared.References(sharedKey); used {
		t.Error("the tables outlive the last configuration")
	}
}
