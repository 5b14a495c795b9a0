package sources

import (
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	for _, tt := range []struct{ address, url string }{
		{"10.0.0.5:8000", "http://10.0.0.5:8000"},
		{"Engine-1.models.svc.cluster.local.:8000", "http://engine-1.models.svc.cluster.local.:8000"},
		{"my_box:08000", "http://my_box:8000"},
		{"[::1]:8000", "http://[::1]:8000"},
		{"[0:0:0:0:0:0:0:1]:8000", "http://[::1]:8000"},
		{"[fe80::1%eth0]:8000", "http://[fe80::1%eth0]:8000"},
		{"http://10.0.0.5", "http://10.0.0.5:80"},
		{"HTTP://Box", "http://box:80"},
		{"http://[::1]", "http://[::1]:80"},
		{"https://eu.example.com/base/", "https://eu.example.com:443/base"},
		{"https://eu.example.com:8443/a%2Fb", "https://eu.example.com:8443/a%2Fb"},
		{"h2c://10.0.0.5:50051", "h2c://10.0.0.5:50051"},
		{"h2c://box", "h2c://box:80"},
		{"https://api.example.com/openai", "https://api.example.com:443/openai"},
		{"http://box:1/v1beta", "http://box:1/v1beta"},
	} {
		t.Run(tt.address, func(t *testing.T) {
			spec, err := ParseAddress(tt.address)
			if err != nil {
				t.Fatal(err)
			}
			if got := spec.URL(); got != tt.url {
				t.Errorf("got %s, want %s", got, tt.url)
			}
		})
	}
}

func TestParseAddressErrors(t *testing.T) {
	for _, tt := range []struct{ address, remedy string }{
		{"", "write host:port, such as 10.0.0.5:8000"},
		{"engine", "write host:port, such as engine:8000, or a URL, such as http://engine"},
		{"10.0.0.5", "such as 10.0.0.5:8000"},
		{"::1", "such as [::1]:8000"},
		{":8000", "write host:port, such as 10.0.0.5:8000"},
		{"engine:", "such as engine:8000"},
		{"http://engine:/", "such as engine:8000"},
		{"http://", "write host:port"},
		{"http:/engine", "such as http://10.0.0.5/base"},
		{"engine:http", "port http is not a number from 1 to 65535"},
		{"engine:0", "port 0 is not a number"},
		{"engine:65536", "port 65536 is not a number"},
		{"engine:+80", "port +80 is not a number"},
		{"engine:8000-8003", "8000-8003 is a range of ports; write each address on its own"},
		{"engine:8000/base", "such as http://engine/base"},
		{"ftp://engine:21", "unknown scheme ftp; write http://, https:// or h2c://"},
		{"ws://engine:21", "unknown scheme ws"},
		{"http://engine:8000?a=b", "no query"},
		{"http://engine:8000?", "no query"},
		{"http://engine:8000#x", "no fragment"},
		{"http://engine:8000/../x", "no . or .."},
		{"http://engine:8000/v1", "leave it out of the address"},
		{"https://api.example.com/openai/v1/", "leave it out of the address"},
		{"http://engine:80 00/", "invalid"},
		{"unix//run/engine.sock", "over TCP only"},
		{"unix+h2c//run/engine.sock", "over TCP only"},
		{"{env.HOST}:8000", "{$NAME} is, when the file is read"},
		{"{http.request.host}:8000", "placeholders are not replaced here"},
		{"http://bü.example:8000", "xn--"},
		{"two words:8000", "is not a host name"},
		{"a\nb:8000", "is not a host name"},
	} {
		t.Run(tt.address, func(t *testing.T) {
			_, err := ParseAddress(tt.address)
			if err == nil || !strings.Contains(err.Error(), tt.remedy) {
				t.Errorf("got %v, want it to contain %q", err, tt.remedy)
			}
		})
	}
}

func TestParseAddressHidesCredentials(t *testing.T) {
	for _, address := range []string{"http://me:s3cret@engine:8000", "me:s3cret@engine:8000", "http://me:s3cret%@engine"} {
		_, err := ParseAddress(address)
		if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "header Authorization") {
			t.Errorf("%s: got %v", address, err)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, seed := range []string{"10.0.0.5:8000", "https://eu.example.com/base", "[::1]:1", "h2c://x:2", "unix//x", "a:1-2", "{x}:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		spec, err := ParseAddress(address)
		if err != nil {
			return
		}
		again, err := ParseAddress(spec.URL())
		if err != nil || again.URL() != spec.URL() {
			t.Errorf("%q is %q, which is %q, %v", address, spec.URL(), again.URL(), err)
		}
	})
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "qwen3-8b", "org/name:tag-q4", "模型", "two words", strings.Repeat("x", 256)} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", " ", "a ", "\ta", "a\nb", "a\x00b", "a\x7f", "a\u0085b", "\xff", strings.Repeat("x", 257)} {
		if CheckName(name) == nil {
			t.Errorf("%q: no error", name)
		}
	}
}

func TestCheckHeader(t *testing.T) {
	for _, tt := range []struct{ field, value, remedy string }{
		{"Authorization", "Bearer {env.KEY}", ""},
		{"x-a", "", ""},
		{"", "x", "is not the name"},
		{"X Y", "x", "is not the name"},
		{"host", "x", "header_up Host"},
		{"content-length", "1", "belongs to the connection"},
		{"TE", "trailers", "belongs to the connection"},
		{"X-A", "a\r\nX-Evil: 1", "line break"},
	} {
		err := CheckHeader(tt.field, tt.value)
		if (err == nil) != (tt.remedy == "") || err != nil && !strings.Contains(err.Error(), tt.remedy) {
			t.Errorf("%s: %q: got %v, want %q", tt.field, tt.value, err, tt.remedy)
		}
	}
}
