package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// wrongValues are values that no flag of a kind takes, or none of a name.
var wrongValues = map[string][]string{
	"bool": {"maybe", ""}, "int": {"x", "1.5", "99999999999999999999", ""}, "float64": {"x", ""}, "lines": {"x", "1.5", "99999999999999999999", ""}, "duration": {"x", "5", "1e9", "-d", "99999d", "1d-2h", "1d2", ""},
	"size": {"x", "-1", "1.5g", "5t", ""}, "intSlice": {"x", "1,x", "0", "70000", "80,80"}, "stringToString": {"x"}, "stringToInt": {"x", "x=y"}, "template": {"{{", "{{.X", "{{nosuch}}"},

	"--allow-host": nil, "--command": nil, "--count": {"-1"}, "--depth": {"-1", "x"}, "--env": {"", "=x", "a\nb=x"}, "--from": {"/no/such/directory", "/etc/passwd"},
	"--git": {"-x", "relative/path"}, "--gpus": {"all,0", "a b"}, "--id": {"../x"}, "--idle-timeout": {"-5s"}, "--image": {"Not An Image", "a:b:c"}, "--listen": {"x", "0.0.0.0:0"}, "--memory": {"1k"},
	"--mount": {"x", "/tmp:/a:xx", "/tmp:a"}, "--name": {"../x", "A B", strings.Repeat("n", 100)}, "--network": {"nonsense", "allow="}, "--oci-runtime": nil, "--only": nil,
	"--pids-limit": {"1", "-1"}, "--placement": {"x"}, "--policy": {"nonsense"}, "--prefix": nil, "--preview-domain": nil, "--revision": {"x"}, "--role": {"nonsense"}, "--runtime": {"none"},
	"--sandbox": {"../x"}, "--signal": {"nonsense", "0", "99", ""}, "--since": {"x", "2026-13-01", "2026-01-02T15:04:05 ", "-5", "1.x", "1767323045000"}, "--snapshot": {"../x"}, "--socket": nil, "--source-address": {"x"}, "--status": {"nonsense"}, "--stop-timeout": {"-5s"},
	"--storage": {"-1"}, "--strip": {"-1"}, "--tag": {"=x", "x"}, "--tarball": {"/no/such/file", "ftp://x/y"}, "--timeout": {"-5s"}, "--token-file": nil, "--trusted-proxy": {"x", "10.0.0.0/33"}, "--user": nil, "--vcpus": {"-1", "NaN", "Inf", "0", "x"},
	"--volume": {"x", "x:a", "v:/a:xx"}, "--without-env": {"", "a=b"}, "--without-mount": {"a"}, "--without-tag": {""}, "--workdir": {"relative"},
}

// otherRules are flags of which one command takes what others refuse: the sandbox or the engine says whether it is right.
var otherRules = []string{
	"sandbox conform --image", "sandbox list --tag", "sandbox mcp --memory", "sandbox mcp --vcpus", "sandbox top --tag", "sandbox watch --tag",
	"sandbox exec --workdir", "sandbox mcp --image", "sandbox mcp --pool", "sandbox run --workdir", "sandbox shell --workdir", "sandbox volume cleanup --name",
}

// A wrong value is an error of usage, which no engine is needed for.
func TestWrongValuesOfFlags(t *testing.T) {
	t.Parallel()
	const nowhere = "tcp://127.0.0.1:1"
	arguments := map[string][]string{
		"exec": {"a", "b"}, "kill": {"a", "b"}, "cp": {"a:b", "/tmp/x"}, "move": {"a", "b"}, "rollback": {"a", "b"}, "check": {"a.test"},
		"list": nil, "orphans": nil, "version": nil, "health": nil, "prune": nil, "serve": nil, "mcp": nil, "create": nil, "conform": nil, "cleanup": nil, "top": nil, "watch": nil, "ssh-config": nil,
	}
	eachCommand(newApp(nil, io.Discard, io.Discard).root(), func(c *cobra.Command) {
		rest, known := arguments[c.Name()]
		if !known || c.CommandPath() == "sandbox snapshot create" {
			rest = []string{"a"}
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			flag := c.CommandPath() + " --" + f.Name
			named, isNamed := wrongValues["--"+f.Name]
			kind, isKind := wrongValues[f.Value.Type()]
			if !isNamed && !isKind {
				t.Errorf("%s: no wrong value of its name or kind %s is known", flag, f.Value.Type())
			}
			if slices.Contains(otherRules, flag) {
				return
			}
			for _, v := range slices.Concat(named, kind) {
				args := slices.Concat([]string{"--host", nowhere}, strings.Fields(c.CommandPath())[1:], []string{"--" + f.Name + "=" + v}, rest)
				if code, out, errOut := call(t.Context(), "", args...); code != codeUsage || out != "" || strings.Contains(errOut, nowhere) {
					t.Errorf("%s=%q: code %d, %q, %q", flag, v, code, out, errOut)
				}
			}
		})
	})
}
