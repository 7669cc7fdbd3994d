package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

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
			_, err = fmt.Fprint(a.stdout, v)
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

// String is for people.
func (v versions) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sandbox %s\n", graphic(v.Version))
	if v.Commit != "" {
		fmt.Fprintf(&b, "commit  %s\n", v.Commit)
	}
	fmt.Fprintf(&b, "go      %s %s\n", v.Go, v.System)
	if v.Engine == "" {
		b.WriteString("engine  does not answer; see sandbox health\n")
	} else {
		fmt.Fprintf(&b, "engine  %s (API %s)\n", graphic(v.Engine), graphic(v.EngineAPI))
	}
	return b.String()
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
