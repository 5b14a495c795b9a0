//go:build unix

package guard

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// guardName is the first argument of this program run as a guard.
const guardName = "flexinfer-guard"

// What a guard reports, a line each: this with the command's number, or why it
// does not run, and then how it ended.
const reportStarted = "started "

// Files of a guard.
const (
	holdFile   = 0
	reportFile = 3
)

// init makes this program a guard if it was run as one. That is before most
// other packages do anything, for this one imports nearly nothing.
func init() {
	if len(os.Args) > 1 && os.Args[0] == guardName {
		runtime.LockOSThread() // the main thread, which lives as long as the process
		guard(os.Args[1:])
	}
}

// guard runs a command in a process group of its own, and leaves when it has
// ended with all that it started. Over the pipe from the process that it is
// guarded for come requests to have the group end, a byte each; when the pipe is
// closed the group is killed.
func guard(args []string) {
	// Signals are for the command. They are not ignored, for it would inherit
	// that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2)
	syscall.CloseOnExec(reportFile)
	reports := os.NewFile(reportFile, "reports")
	adopt()
	pid, err := start(args)
	if err != nil {
		fmt.Fprintln(reports, oneLine(err.Error()))
		os.Exit(1)
	}
	fmt.Fprintf(reports, "%s%d\n", reportStarted, pid)
	go obey(os.NewFile(holdFile, "hold"), pid)
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // no children are left
			_ = syscall.Kill(-pid, syscall.SIGKILL) // theirs, on other systems
			os.Exit(0)
		case ended == pid:
			fmt.Fprintln(reports, reason(status))
		}
	}
}

// obey ends the command's group when it is told to.
func obey(hold *os.File, pid int) {
	for b := make([]byte, 1); ; {
		if _, err := hold.Read(b); err != nil {
			break
		}
		signalAll(pid, syscall.SIGTERM)
	}
	// Again and again: what is killed may have left children, or had some just
	// then. The guard ends when there are none.
	for limit := time.Now().Add(leaveTime); time.Now().Before(limit); time.Sleep(killPause) {
		signalAll(pid, syscall.SIGKILL)
	}
	os.Exit(0)
}

// signalAll signals the command's group and all that has left it, as far as that
// can be known.
func signalAll(group int, s syscall.Signal) {
	_ = syscall.Kill(-group, s)
	for _, pid := range strays(group) {
		_ = syscall.Kill(pid, s)
	}
}

const (
	// leaveTime is how long a guard stays for what it has killed.
	leaveTime = 2 * time.Second
	killPause = 20 * time.Millisecond
)

// start starts the command and returns its number.
func start(args []string) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, attributes()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	// What the command writes comes to its end when the others close it.
	_ = os.Stdout.Close()
	_ = os.Stderr.Close()
	return cmd.Process.Pid, nil
}

func reason(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", " ") }
