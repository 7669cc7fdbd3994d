package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is that of the module that was installed, or of the commit that was built.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

// versions are what a report of a fault should name.
type versions struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	Go        string `json:"go"`
	System    string `json:"system"`
	Engine    string `json:"engine,omitempty"` // empty if it does not answer
	EngineAPI string `json:"engineApi,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of the engine",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := versions{Version: version(), Commit: commit(), Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
			h, err := a.client.CheckHealth(c.Context())
			if err == nil {
				v.Engine, v.EngineAPI = h.Version, h.APIVersion
			}
			if asJSON {
				return printJSON(a.stdout, v)
			}
			fmt.Fprintf(a.stdout, "sandbox %s\n", graphic(v.Version))
			if v.Commit != "" {
				fmt.Fprintf(a.stdout, "commit  %s\n", v.Commit)
			}
			fmt.Fprintf(a.stdout, "go      %s %s\n", v.Go, v.System)
			if v.Engine == "" {
				fmt.Fprintln(a.stdout, "engine  does not answer; see sandbox health")
				return nil
			}
			fmt.Fprintf(a.stdout, "engine  %s (API %s)\n", graphic(v.Engine), graphic(v.EngineAPI))
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// commit is the commit that was built, with a plus sign if the files differed from it.
func commit() string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	var commit, changed string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + changed
}
