// Package command adds the command `flexinfer` to Caddy's own. Each of its
// subcommands lives in a file of its own, which adds itself to subcommands.
package command

import (
	"fmt"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

// subcommands make the commands below `flexinfer`. They are called once, after
// all init functions.
var subcommands []func() *cobra.Command

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "flexinfer",
		Usage: "<command>",
		Short: "Commands of the FlexInfer inference gateway",
		Long: `
Commands of the FlexInfer inference gateway. The gateway itself is part of
'caddy run', by the global option and the site directive 'flexinfer'.
`,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return fmt.Errorf("unknown command %q; see: caddy flexinfer --help", args[0])
				}
				return cmd.Help()
			}
			for _, newCommand := range subcommands {
				cmd.AddCommand(newCommand())
			}
		},
	})
}
