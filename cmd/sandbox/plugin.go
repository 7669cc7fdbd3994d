package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// plugin is the name that makes this program a plug-in of the Docker command line: "docker sandbox" runs
// the program of that name in the directory cli-plugins of Docker's configuration.
const plugin = "docker-sandbox"

func isPlugin(name string) bool { return strings.TrimSuffix(filepath.Base(name), ".exe") == plugin }

// asPlugin runs the program with the arguments of the Docker command line: its own flags, the word
// sandbox, and what follows.
func asPlugin(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "docker-cli-plugin-metadata" {
		metadata := map[string]string{
			"SchemaVersion": "0.1.0", "Vendor": "github.com/seed-1a2d6d8f/sandbox", "Version": version(),
			"ShortDescription": "Disposable sandboxes", "URL": "https://github.com/seed-1a2d6d8f/sandbox",
		}
		if json.NewEncoder(stdout).Encode(metadata) != nil {
			return codeFailed
		}
		return 0
	}
	args, err := pluginArgs(args)
	if err != nil {
		fmt.Fprintln(stderr, "sandbox:", err)
		return codeUsage
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer endWithDocker(cancel)()
	return run(ctx, args, stdin, stdout, stderr)
}

// pluginArgs returns the arguments of "sandbox" for those of "docker". The engine is the one that docker
// would use.
func pluginArgs(args []string) ([]string, error) {
	if len(args) > 1 && strings.HasPrefix(args[0], "__complete") && args[1] == "sandbox" {
		return slices.Delete(slices.Clone(args), 1, 2), nil
	}
	docker := pflag.NewFlagSet("docker", pflag.ContinueOnError)
	docker.SetInterspersed(false)
	docker.Usage = func() {}
	host := docker.StringP("host", "H", "", "")
	use := docker.StringP("context", "c", "", "")
	config := docker.String("config", "", "")
	docker.BoolP("debug", "D", false, "")
	docker.StringP("log-level", "l", "", "")
	if err := docker.Parse(args); err != nil {
		return nil, fmt.Errorf("docker sandbox: %w; give other flags of docker by a context", err)
	}
	rest := docker.Args()
	if len(rest) == 0 || rest[0] != "sandbox" {
		return nil, fmt.Errorf("%s is run by docker, as docker sandbox", plugin)
	}
	rest = rest[1:]
	if *config != "" {
		if err := os.Setenv("DOCKER_CONFIG", *config); err != nil {
			return nil, err
		}
	}
	if *use != "" {
		// A context that is named has precedence over the host of the environment.
		if err := os.Setenv("DOCKER_CONTEXT", *use); err != nil {
			return nil, err
		}
		if err := os.Unsetenv("DOCKER_HOST"); err != nil {
			return nil, err
		}
	}
	if *host != "" {
		rest = append([]string{"--host", *host}, rest...)
	}
	return rest, nil
}

// endWithDocker calls end when docker gets a signal, or ends: then it closes this connection. The caller
// calls stop.
func endWithDocker(end func()) (stop func()) {
	c, err := net.Dial("unix", os.Getenv("DOCKER_CLI_PLUGIN_SOCKET"))
	if err != nil {
		return func() {} // an older one has none
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Read(make([]byte, 1))
		end()
	}()
	return func() { c.Close(); <-done }
}
