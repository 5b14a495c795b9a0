package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/flexinfer/caddy-flexinfer/tests/harness"
)

// Environment variables between the two processes that Main makes of a test
// binary, and for those who run it.
const (
	envInside  = "KUBE_INSIDE" // set in the network namespace
	envBin     = "KUBE_BIN"    // the folder with the control plane's programs
	envGateway = "GATEWAY_BIN" // the gateway, as for all tests
	envKeep    = "KUBE_KEEP"   // not empty: keeps the folder with the logs
)

// Main is for TestMain. It runs the tests of a package in a network namespace
// of their own, with a cluster that they find in into.
//
// The test binary runs itself again in there: no privilege is needed for it,
// and `go test` works as for any other package.
func Main(m *testing.M, into **Cluster) {
	var code int
	var err error
	if os.Getenv(envInside) == "" {
		code, err = outside()
	} else {
		code, err = inside(m, into)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

// outside builds what has to be built while there is a network, and runs the
// test binary again.
func outside() (int, error) {
	defer harness.RemoveBinary()
	gateway, err := harness.Build()
	if err != nil {
		return 0, err
	}
	bin := os.Getenv(envBin)
	if bin == "" {
		if bin, err = buildPrograms(); err != nil {
			return 0, err
		}
	}
	// The signal that ends the other process with this one comes when the
	// thread ends that started it.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), envInside+"=1", envBin+"="+bin, envGateway+"="+gateway)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: 1}}
	}
	// A terminal interrupts both, and the other one says how it ended.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("running the tests in a network namespace, as `unshare -rnm` does: %w", err)
	}
	return 0, nil
}

// buildPrograms returns the folder with the control plane's programs.
func buildPrograms() (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(root, "tests", "kube", "build"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("tests/kube/build: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func inside(m *testing.M, into **Cluster) (code int, err error) {
	if err := network(); err != nil {
		return 0, fmt.Errorf("setting up the network: %w", err)
	}
	if err := useResolver(secrets); err != nil {
		return 0, fmt.Errorf("setting up the files that pods have: %w", err)
	}
	dir, err := os.MkdirTemp("", "kube-")
	if err != nil {
		return 0, err
	}
	c, err := start(os.Getenv(envBin), dir)
	if err != nil {
		return 0, fmt.Errorf("%w\nthe logs are in %s", err, dir)
	}
	*into = c
	code = m.Run()
	c.stop()
	if os.Getenv(envKeep) != "" {
		fmt.Fprintln(os.Stderr, "the logs are in", dir)
		return code, nil
	}
	return code, os.RemoveAll(dir)
}

// network makes the loopback interface the home of all addresses of pods and
// services. Kubernetes takes none of 127.0.0.0/8 for them.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	return addAddr("10.0.0.1/8") // and with it, on this interface, the whole net
}

func addAddr(cidr string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	addr.Flags = syscall.IFA_F_NODAD
	return netlink.AddrAdd(lo, addr)
}

// secrets hides /var/run, where pods find what belongs to their service account,
// behind an empty folder that only the tests see.
func secrets() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	return syscall.Mount("tmpfs", "/var/run", "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=0755")
}
