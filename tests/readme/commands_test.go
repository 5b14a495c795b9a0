package readme

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The ports that the quickstart listens on.
var ports = []string{"2019", "8080", "8081", "9001", "9002", "9003"}

// Every command of the README is run, from top to bottom, in one shell at the
// root of the repository. A block with <!-- test: server --> runs in the
// background until the next one or the end. One that cannot be run here says
// why: <!-- test: skip, reason -->.
func TestCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the gateway")
	}
	for _, port := range ports {
		ln, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatalf("the quickstart needs port %s: %v", port, err)
		}
		_ = ln.Close()
	}
	root, err := filepath.Abs(filepath.Dir(readme))
	if err != nil {
		t.Fatal(err)
	}
	sh := startShell(t, root)
	ran := 0
	for _, b := range blocks(t) {
		switch b.language {
		case "sh", "console":
		case "caddyfile", "text": // the former: see TestCaddyfiles
			continue
		default:
			t.Errorf("%s: a block of %q; commands are sh or console, Caddyfiles caddyfile", &b, b.language)
			continue
		}
		switch b.test {
		case "skip":
			if b.reason == "" {
				t.Errorf("%s: skipped without a reason", &b)
			}
			continue
		case "server":
			startServer(t, root, strings.TrimSpace(b.text))
		case "":
			for _, c := range commandsOf(t, &b) {
				output, code := sh.run(t, c.text)
				if code != 0 {
					t.Fatalf("%s: %s\nexit status %d:\n%s", &b, c.text, code, output)
				}
				if b.language == "console" {
					compare(t, &b, c, output)
				}
			}
		default:
			t.Errorf("%s: unknown test directive %q", &b, b.test)
		}
		ran++
	}
	if ran < 5 {
		t.Errorf("only %d blocks were run", ran)
	}
	_ = os.RemoveAll(filepath.Join(root, "dist"))
}

func commandsOf(t *testing.T, b *block) []command {
	t.Helper()
	if b.language == "console" {
		return b.commands(t)
	}
	return []command{{text: strings.TrimSuffix(b.text, "\n")}}
}

func compare(t *testing.T, b *block, c command, output string) {
	t.Helper()
	var got []string
	if output = strings.TrimRight(output, "\r\n"); output != "" {
		got = strings.Split(output, "\n")
	}
	same := len(got) == len(c.want)
	for i := 0; same && i < len(got); i++ {
		same = alike(c.want[i], got[i])
	}
	if !same {
		t.Errorf("%s: %s\nprinted:\n%s\nthe README shows:\n%s", b, c.text, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
	}
}

// shell is one shell for all commands, so that a function defined by one is
// there for the next.
type shell struct {
	in  io.Writer
	out *bufio.Reader
	n   int
}

func startShell(t *testing.T, dir string) *shell {
	t.Helper()
	cmd := exec.Command("bash", "--norc", "--noprofile")
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &shell{in: in, out: bufio.NewReader(out)}
}

// run runs a command and returns what it printed and its exit status.
func (s *shell) run(t *testing.T, command string) (output string, code int) {
	t.Helper()
	s.n++
	mark := fmt.Sprintf("--- end of command %d ---", s.n)
	if _, err := fmt.Fprintf(s.in, "%s\nprintf '\\n%%s %%d\\n' '%s' $?\n", command, mark); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if rest, ok := strings.CutPrefix(line, mark+" "); ok {
			_, _ = fmt.Sscan(rest, &code)
			// without the line break that stands before the mark
			return strings.TrimSuffix(b.String(), "\n"), code
		}
		b.WriteString(line)
		if err != nil {
			t.Fatalf("%s: the shell ended:\n%s", command, b.String())
		}
	}
}

// startServer runs a command until the test ends, and waits until the gateway
// is ready.
func startServer(t *testing.T, dir, command string) {
	t.Helper()
	var log strings.Builder
	cmd := exec.Command("bash", "-c", "exec "+command)
	cmd.Dir = dir
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // go run starts the gateway as a child
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(15 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
		}
		if t.Failed() {
			lines := strings.Split(log.String(), "\n")
			t.Logf("%s wrote at the end:\n%s", command, strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	})
	// The first build takes minutes.
	for deadline := time.Now().Add(15 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if res, err := http.Get("http://127.0.0.1:8080/readyz"); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-done:
			t.Fatalf("%s ended:\n%s", command, log.String())
		default:
		}
	}
	t.Fatalf("%s is not ready:\n%s", command, log.String())
}
