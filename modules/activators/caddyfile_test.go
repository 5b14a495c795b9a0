package activators

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// parse reads `activate <input>` as a model's block does, and returns JSON.
func parse(input string) (string, error) {
	d := caddyfile.NewTestDispenser("activate " + input)
	d.Next()
	d.NextArg()
	unm, err := caddyfile.UnmarshalModule(d, "flexinfer.activators."+d.Val())
	if err != nil {
		return "", err
	}
	out, err := json.Marshal(unm)
	return string(out), err
}

func TestCaddyfile(t *testing.T) {
	for input, want := range map[string]string{
		"http {\nstart POST http://a:1/start\nready GET http://b:2/health\nstop POST http://a:1/stop\nidle_timeout 10m\n}": `{"start":{"method":"POST","url":"http://a:1/start"},"stop":{"method":"POST","url":"http://a:1/stop"},` +
			`"ready":{"method":"GET","url":"http://b:2/health"},"idle_timeout":600000000000}`,
		"http {\nstart https://a/x?y {\nheader authorization \"Bearer {env.K}\"\nheader X-B c\nbody `{\"a\": 1}`\n}\nready http://[::1]:2/\ninterval 1s\n}": `{"start":{"url":"https://a/x?y",` +
			`"headers":{"Authorization":"Bearer {env.K}","X-B":"c"},"body":"{\"a\": 1}"},"ready":{"url":"http://[::1]:2/"},"interval":1000000000}`,
		"exec {\nstart llama-server -m \"a b.gguf\" --port 8000\nready GET http://127.0.0.1:8000/health\nidle_timeout 0\n}": `{"start":["llama-server","-m","a b.gguf","--port","8000"],` +
			`"ready":{"method":"GET","url":"http://127.0.0.1:8000/health"},"idle_timeout":0}`,
		"http {\nstart http://a/\nready http://b/\nidle_timeout 0\n}": `{"start":{"url":"http://a/"},"ready":{"url":"http://b/"},"idle_timeout":0}`,
		"exec {\nstart x\nenv A 1\nenv B \"\"\ndir /srv\ngrace 1m\nready http://127.0.0.1:8000/health\n}": `{"start":["x"],"env":{"A":"1","B":""},"dir":"/srv","grace":60000000000,` +
			`"ready":{"url":"http://127.0.0.1:8000/health"}}`,
	} {
		if got, err := parse(input); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", input, got, err, want)
		}
	}
}

// What is wrong is said with file, line and what to write.
func TestCaddyfileErrors(t *testing.T) {
	const ready, start = "ready http://a/\n", "start http://a/\n"
	for input, want := range map[string]string{
		"http":                                                                     "nothing starts the model; write, for example, start POST http://10.0.0.9:9000/start, at Testfile:1",
		"http x {\n}":                                                              "http takes no arguments; its options are written in braces after it, at Testfile:1",
		"http {\n" + start + "}":                                                   "nothing says when the model is awake; write, for example, ready GET http://10.0.0.5:8000/health, at Testfile:1",
		"http {\n" + ready + "command x\n}":                                        "http has no option command; write one of: idle_timeout, interval, ready, start, stop, at Testfile:3",
		"http {\n" + ready + ready + "}":                                           "ready is there twice; keep one, at Testfile:3",
		"http {\nready\n}":                                                         "ready takes a method and a URL, such as: ready POST http://10.0.0.5:8000/ready, at Testfile:2",
		"http {\nready GET http://a/ x\n}":                                         "ready takes a method and a URL",
		"http {\nready a:8000\n}":                                                  "is no URL of scheme http or https; write, for example, http://10.0.0.5:8000/ready, at Testfile:2",
		"http {\nready ftp://a/\n}":                                                "is no URL of scheme http or https",
		"http {\nready http://\n}":                                                 "is no URL of scheme http or https",
		"http {\nready http://a/{env.X}\n}":                                        "placeholders are not replaced in a URL",
		"http {\nready http://u:p@a/\n}":                                           `those go into a header: header Authorization "Bearer {env.KEY}"`,
		"http {\nready http://a:x/\n}":                                             "the URL cannot be read",
		"http {\nready http://a/#x\n}":                                             "has a fragment, which is not sent; leave out #x",
		"http {\nready G(T http://a/\n}":                                           `"G(T" is no method; write GET or POST`,
		"http {\nready http://a/ {\nx y\n}\n}":                                     `unknown option "x" in ready; known: body, header, at Testfile:3`,
		"http {\nready http://a/ {\nheader X\n}":                                   "header takes a name and a value",
		"http {\nready http://a/ {\nheader X 1\nheader x 2\n}\n}":                  "header X is there twice; keep one, at Testfile:4",
		"http {\nready http://a/ {\nheader X: 1\n}\n}":                             `"X:" is not the name of a header field`,
		"http {\nready http://a/ {\nheader X \"a\nb\"\n}\n}":                       "header X: the value holds a line break",
		"http {\nready http://a/ {\nbody\n}\n}":                                    "body takes one text",
		"http {\nready http://a/ {\nbody a\nbody b\n}\n}":                          "body is there twice; keep one",
		"http {\nready http://a/ {\nbody " + strings.Repeat("x", 65537) + "\n}\n}": "the body has 65537 bytes; it may have 65536",
		"http {\n" + ready + start + "idle_timeout soon\n}":                        `idle_timeout is "soon"; write a time, such as 10m, at Testfile:4`,
		"http {\n" + ready + start + "idle_timeout -1s\n}":                         `idle_timeout is "-1s"; write a time`,
		"http {\n" + ready + start + "idle_timeout\n}":                             "idle_timeout takes one time, such as: idle_timeout 10m",
		"http {\n" + ready + start + "idle_timeout 1s {\nx\n}\n}":                  "idle_timeout takes no block",
		"http {\n" + ready + start + "idle_timeout 10m\n}":                         "idle_timeout needs a request that stops the model; write, for example, stop POST http://10.0.0.9:9000/stop, or leave out idle_timeout, at Testfile:1",
		"http {\n" + ready + start + "interval 1ms\n}":                             "interval is 1ms; write a time of 100ms or more, such as 10s",
		"exec {\n" + ready + "}":                                                   "there is no command to start; write, for example, start llama-server -m model.gguf --port 8000, at Testfile:1",
		"exec {\n" + ready + "start\n}":                                            "start needs a command, such as: start llama-server -m model.gguf --port 8000, at Testfile:3",
		"exec {\nstart x\n}":                                                       "nothing says when the model is awake",
		"exec {\n" + ready + "start x {\ny\n}\n}":                                  "start takes no block",
		"exec {\n" + ready + "stop http://a/\n}":                                   "exec has no option stop; write one of: dir, env, grace, idle_timeout, interval, ready, start",
		"exec {\nenv A\n}":                                                         "env takes a name and a value, such as: env CUDA_VISIBLE_DEVICES 0",
		"exec {\nenv A 1\nenv A 2\n}":                                              "env A is there twice; keep one, at Testfile:3",
		"exec {\n" + ready + "start x\nenv A=B 2\n}":                               `env "A=B" is not the name of a variable`,
		"exec {\ndir\n}":                                                           "dir takes one path, such as: dir /srv/models",
		"exec {\ngrace x\n}":                                                       `grace is "x"; write a time, such as 10s`,
	} {
		if got, err := parse(input); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100q: %s, %v; want %s", input, got, err, want)
		}
	}
}

func TestProvisionErrors(t *testing.T) {
	request := func() *Request { return &Request{URL: "http://a/"} }
	secret := func(value string) *Request { return &Request{URL: "http://a/", Headers: map[string]string{"X": value}} }
	t.Setenv("TWO_LINES", "a\nb")
	for want, m := range map[string]caddy.Provisioner{
		"start: header X: evaluated placeholder {env.NOT_THERE} is empty": &HTTP{StartRequest: secret("{env.NOT_THERE}"), Watch: Watch{Ready: request()}},
		"stop: header X: ": &HTTP{StartRequest: request(), StopRequest: secret("{env.NOT_THERE}"), Watch: Watch{Ready: request()}},
		"ready: header X: header X: the value holds a line break": &HTTP{StartRequest: request(), Watch: Watch{Ready: secret("{env.TWO_LINES}")}},
		"start: body: ":                       &HTTP{StartRequest: &Request{URL: "http://a/", Body: "{env.NOT_THERE}"}, Watch: Watch{Ready: request()}},
		"start has no URL":                    &HTTP{StartRequest: &Request{}, Watch: Watch{Ready: request()}},
		"idle_timeout is -1ns; write a time":  &HTTP{StartRequest: request(), Watch: Watch{Ready: request(), IdleTimeout: new(caddy.Duration(-1))}},
		"env A: ":                             &Exec{Command: []string{"x"}, Env: map[string]string{"A": "{env.NOT_THERE}"}, Watch: Watch{Ready: request()}},
		"grace is -1ns; write a time above 0": &Exec{Command: []string{"x"}, Grace: -1, Watch: Watch{Ready: request()}},
		"holds a zero byte":                   &Exec{Command: []string{"x", "a\x00"}, Watch: Watch{Ready: request()}},
	} {
		err := m.Provision(caddy.Context{Context: t.Context()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
		if err := m.(caddy.CleanerUpper).Cleanup(); err != nil {
			t.Error(err)
		}
	}
}
