package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/flexinfer/caddy-flexinfer/modules/engine/sim"
)

func init() { subcommands = append(subcommands, newEngineCommand) }

// engineGrace is how long streams may go on after a signal to stop.
const engineGrace = 800 * time.Millisecond

func newEngineCommand() *cobra.Command {
	defaults := sim.DefaultConfig()
	cmd := &cobra.Command{
		Use:   "engine [--listen <address>...] [--model <name>...] [--ttft <duration>] ...",
		Short: "Runs simulated inference engines",
		Long: `
Runs simulated inference engines, one on each --listen address. They speak the
OpenAI API (chat, completions, embeddings, responses, audio), Anthropic's
messages and Ollama's API, and have vLLM's metrics, over HTTP/1.1 and h2c.
Answers are words drawn from a small vocabulary; prefix cache, queue and timing
are like those of a real engine. No GPU and no model are needed.

A port of 0 picks a free one. The address of each engine is printed to stdout
as a line 'engine listening on <address>' when all of them listen.

Failures are set over HTTP, for example two answers of 503:

	curl -d '{"status":503,"count":2}' 127.0.0.1:9001/_sim/failures

"path" limits a failure to one path; "delay" holds the answer back, as in
"2s"; "reset" breaks the connection off before_headers or after_headers, and
"after_tokens" so many tokens into a stream.

'GET /_sim/requests' shows the requests an engine got, 'GET /_sim/state' what it
is busy with, 'DELETE /_sim/cache' empties its prefix cache.
`,
		Example: `  $ caddy flexinfer engine
  $ caddy flexinfer engine --listen 127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003
  $ caddy flexinfer engine --listen 127.0.0.1:9001 --model qwen3-8b --ttft 50ms --kv-blocks 1024
  $ caddy flexinfer engine --ttft 0 --prefill-tokens-per-second 0 --tokens-per-second 0`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceP("listen", "l", []string{"127.0.0.1:9001"}, "`address` of an engine, repeatable or separated by commas")
	f.String("name", "", "`name` of the engine, if there is one only (default: its address)")
	f.StringArrayP("model", "m", defaults.Models, "`name` of a model to serve, repeatable")
	f.Duration("ttft", defaults.TTFT, "`time` to the first token that no cache saves")
	f.Float64("prefill-tokens-per-second", defaults.PrefillRate, "`tokens` of prompts computed per second, 0 for no delay")
	f.Float64("tokens-per-second", defaults.DecodeRate, "`tokens` per second of one answer, 0 for no delay")
	f.Int("kv-blocks", defaults.KVBlocks, "`blocks` that the cache holds")
	f.Int("block-size", defaults.BlockSize, "`tokens` in a block")
	f.Int("max-num-seqs", defaults.MaxNumSeqs, "`sequences` that run at once")
	f.Int("max-model-len", 0, "context window in `tokens` (default: as many as the cache holds)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return caddycmd.WrapCommandFuncForCobra(func(fl caddycmd.Flags) (int, error) {
			return runEngines(cmd.Context(), cmd.OutOrStdout(), fl)
		})(cmd, args)
	}
	return cmd
}

func runEngines(ctx context.Context, out io.Writer, fl caddycmd.Flags) (int, error) {
	addresses, err := fl.GetStringSlice("listen")
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	models, err := fl.GetStringArray("model")
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	cfg := sim.Config{
		Name:        fl.String("name"),
		Models:      models,
		TTFT:        fl.Duration("ttft"),
		PrefillRate: fl.Float64("prefill-tokens-per-second"),
		DecodeRate:  fl.Float64("tokens-per-second"),
		KVBlocks:    fl.Int("kv-blocks"),
		BlockSize:   fl.Int("block-size"),
		MaxNumSeqs:  fl.Int("max-num-seqs"),
		MaxModelLen: fl.Int("max-model-len"),
	}
	if cfg.Name != "" && len(addresses) > 1 {
		return caddy.ExitCodeFailedStartup, errors.New("--name is for a single engine: leave it out, and each goes by its address")
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process as if this one had never been caught.
	context.AfterFunc(ctx, stop)

	if err := serveEngines(ctx, out, addresses, cfg); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	return caddy.ExitCodeSuccess, nil
}

// serveEngines serves one engine on each address until ctx is done or one of
// them fails. All listen before the first is announced.
func serveEngines(ctx context.Context, out io.Writer, addresses []string, cfg sim.Config) error {
	listeners := make([]net.Listener, 0, len(addresses))
	defer func() {
		for _, ln := range listeners {
			_ = ln.Close()
		}
	}()
	servers := make([]*http.Server, 0, len(addresses))
	for _, address := range addresses {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("listening on %q (write <host>:<port>, such as 127.0.0.1:9001): %w", address, err)
		}
		listeners = append(listeners, ln)
		engineCfg := cfg
		if engineCfg.Name == "" {
			engineCfg.Name = ln.Addr().String()
		}
		engine, err := sim.New(engineCfg)
		if err != nil {
			return fmt.Errorf("setting up the engine: %w", err)
		}
		protocols := new(http.Protocols)
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		servers = append(servers, &http.Server{
			Handler:           engine,
			Protocols:         protocols,
			ReadHeaderTimeout: 10 * time.Second,
		})
	}
	for _, ln := range listeners {
		if _, err := fmt.Fprintf(out, "engine listening on %s\n", ln.Addr()); err != nil {
			return fmt.Errorf("announcing the engine: %w", err)
		}
	}

	failed := make(chan error, len(servers))
	for i, srv := range servers {
		go func() { failed <- srv.Serve(listeners[i]) }()
	}
	var err error
	running := len(servers)
	select {
	case <-ctx.Done():
	case err = <-failed:
		running--
	}
	stopServers(servers)
	for ; running > 0; running-- {
		_ = <-failed // they were told to stop
	}
	if err != nil {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// stopServers lets requests end for a moment, then cuts them.
func stopServers(servers []*http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), engineGrace)
	defer cancel()
	var wg sync.WaitGroup
	for _, srv := range servers {
		wg.Go(func() {
			if srv.Shutdown(ctx) != nil {
				_ = srv.Close()
			}
		})
	}
	wg.Wait()
}
