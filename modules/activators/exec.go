package activators

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/flexinfer/caddy-flexinfer/modules/internal/guard"
	"github.com/flexinfer/caddy-flexinfer/modules/routing"
)

func init() {
	caddy.RegisterModule(new(Exec))
}

// Exec wakes a model by starting a process on this machine, and stops it when
// the model is not used.
//
// The process has a process group of its own. What it writes is logged, under
// the name flexinfer.exec. It lives across reloads, as long as a configuration
// has the same command, environment and directory. It is told to end, by the
// signal TERM to its group, when it is idle, when it has left the configuration
// and the calls under way have ended, and when the gateway exits; what of the
// group still runs after a grace period is killed. It never outlives the
// gateway: should that be killed by kill -9, or crash, a small process that
// stands between the two kills the group. On Linux, where /proc is there, all
// this goes for what has left the group as well, by setsid or as a daemon; on
// other systems that is told nothing and runs on. On Linux the group does not
// outlive the small process either. On systems that are no Unix this module
// does not work.
//
// Under systemd, the gateway's unit needs KillMode=mixed: else a stop of the
// unit tells the process to end at once, with calls under way.
//
// A process that ends by itself is started again when the next call comes. One
// that ended before it was ready, or within 10 s after, has failed: it is
// started again after 1 s at the earliest, then 2 s and so on, up to 1 minute,
// until one runs for longer. If another process of the gateway answers at the same ready
// URL, as after a reload that changes the command, that one has to end first.
type Exec struct {
	// The program and its arguments. The program is looked up in PATH. No
	// shell reads them, and placeholders are not replaced.
	Command []string `json:"start"`

	// Environment variables, beside those of the gateway. Values may hold
	// global placeholders, such as {env.KEY}.
	Env map[string]string `json:"env,omitempty"`

	// The working directory. Default: the gateway's.
	Dir string `json:"dir,omitempty"`

	// How long the process has to end by itself after it is told to. Default:
	// `10s`.
	Grace caddy.Duration `json:"grace,omitempty"`

	Watch

	env []string
}

// execKey is what makes a process another one, hashed, for it may hold secrets.
type execKey [sha256.Size]byte

const defaultGrace = 10 * time.Second

// CaddyModule returns the Caddy module information.
func (*Exec) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "flexinfer.activators.exec",
		New: func() caddy.Module { return new(Exec) },
	}
}

// Provision sets up x. It starts nothing.
func (x *Exec) Provision(caddy.Context) error {
	if err := x.Validate(); err != nil {
		return err
	}
	if x.Grace == 0 {
		x.Grace = caddy.Duration(defaultGrace)
	}
	x.env = os.Environ()
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %q\n", x.Command, x.Dir)
	repl := caddy.NewReplacer()
	for _, name := range slices.Sorted(maps.Keys(x.Env)) {
		value, err := repl.ReplaceOrErr(x.Env[name], true, false) // braces may be those of JSON
		if err != nil {
			return fmt.Errorf("env %s: %w", name, err)
		}
		if strings.ContainsRune(value, 0) {
			return fmt.Errorf("env %s: the value holds a zero byte", name)
		}
		x.env = append(x.env, name+"="+value)
		fmt.Fprintf(hash, "%q %q\n", name, value)
	}
	return x.provision(execKey(hash.Sum(nil)), execLever{x})
}

// Validate returns an error if x cannot work.
func (x *Exec) Validate() error {
	switch {
	case !guard.Supported:
		return errors.New("activate exec works on Unix only; write activate http, with a service that starts the engine")
	case len(x.Command) == 0 || x.Command[0] == "":
		return errors.New("there is no command to start; write, for example, start llama-server -m model.gguf --port 8000")
	case x.Grace < 0:
		return fmt.Errorf("grace is %s; write a time above 0, such as 10s", time.Duration(x.Grace))
	}
	for _, arg := range append([]string{x.Dir}, x.Command...) {
		if strings.ContainsRune(arg, 0) {
			return errors.New("start or dir holds a zero byte, which no command can")
		}
	}
	for name := range x.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("env %q is not the name of a variable; write, for example, env CUDA_VISIBLE_DEVICES 0", name)
		}
	}
	return x.validate()
}

// execLever starts and stops the process of an engine.
type execLever struct{ *Exec }

func (x execLever) on(ctx context.Context, e *engine, model string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		if e.process != nil || e.starting {
			return nil // under way
		}
		if e.plan() == nil {
			return errLeft
		}
		other := processes.at(x.plan.ready.url, e)
		if other == nil {
			break
		}
		e.mu.Unlock()
		var err error
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-other.over:
		}
		e.mu.Lock()
		if err != nil {
			return err
		}
	}
	e.starting = true
	e.mu.Unlock()
	p, err := startProcess(e, model, x.plan.ready.url, time.Duration(x.Grace), guard.Command{Args: x.Command, Env: x.env, Dir: x.Dir})
	e.mu.Lock()
	e.starting = false
	if err != nil {
		caddy.Log().Named("flexinfer.exec").Warn("process could not be started", zap.String("model", model), zap.String("program", x.Command[0]), zap.Error(err))
		return e.fail("the program could not be run")
	}
	caddy.Log().Named("flexinfer.exec").Info("process has started", zap.String("model", model), zap.String("program", x.Command[0]), zap.Int("pid", p.PID()))
	if e.plan() == nil {
		p.begin()
		p.stop(p.grace)
		return errLeft
	}
	e.process, e.readyAt = p, time.Time{} // before it can be known to have ended
	p.begin()
	e.turn++
	e.publish()
	return nil
}

func (x execLever) off(ctx context.Context, e *engine) error {
	e.mu.Lock()
	p := e.process
	e.process = nil
	if e.steady() {
		e.backOff = 0
	}
	e.mu.Unlock()
	if p == nil {
		return nil // it has just ended by itself
	}
	p.stop(time.Duration(x.Grace))
	select {
	case <-p.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (execLever) can(e *engine) bool { return e.process != nil }

func (x execLever) leave(e *engine) {
	if len(e.plans) > 0 || e.process == nil {
		return // all have the same command
	}
	if !e.readyAt.IsZero() {
		e.process.retire(e.none(), time.Duration(x.Grace))
	} else {
		e.process.stop(time.Duration(x.Grace)) // calls under way only wait
	}
	e.process = nil
}

// UnmarshalCaddyfile sets up x. Syntax:
//
//	exec {
//	    start <program> [<arguments...>]
//	    env   <name> <value>
//	    dir   <path>
//	    grace <duration>
//	    ready [<method>] <url> {
//	        header <field> <value>
//	        body   <text>
//	    }
//	    interval     <duration>
//	    idle_timeout <duration>
//	}
//
// `env` may be repeated.
func (x *Exec) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return x.unmarshal(d, x.Validate, map[string]func(*caddyfile.Dispenser) error{
		"start": func(d *caddyfile.Dispenser) error {
			if x.Command = d.RemainingArgs(); len(x.Command) == 0 {
				return d.Err("start needs a command, such as: start llama-server -m model.gguf --port 8000")
			}
			return nil
		},
		"env": func(d *caddyfile.Dispenser) error {
			var name, value string
			if !d.Args(&name, &value) || d.NextArg() {
				return d.Err("env takes a name and a value, such as: env CUDA_VISIBLE_DEVICES 0")
			}
			if _, ok := x.Env[name]; ok {
				return d.Errf("env %s is there twice; keep one", name)
			}
			if x.Env == nil {
				x.Env = make(map[string]string)
			}
			x.Env[name] = value
			return nil
		},
		"dir": func(d *caddyfile.Dispenser) error {
			if !d.Args(&x.Dir) || d.NextArg() {
				return d.Err("dir takes one path, such as: dir /srv/models")
			}
			return nil
		},
		"grace": durationInto(&x.Grace, "10s"),
	})
}

// Interface guards
var (
	_ caddy.Module          = (*Exec)(nil)
	_ caddy.Provisioner     = (*Exec)(nil)
	_ caddy.Validator       = (*Exec)(nil)
	_ caddy.CleanerUpper    = (*Exec)(nil)
	_ caddyfile.Unmarshaler = (*Exec)(nil)
	_ routing.Starter       = (*Exec)(nil)
	_ routing.Activator     = (*Exec)(nil)
	_ routing.Keeper        = (*Exec)(nil)
	_ routing.Watcher       = (*Exec)(nil)
)
