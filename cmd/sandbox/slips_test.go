package main

import (
	"strings"
	"testing"
)

// Who writes a verb or a flag of another program, or misspells one, gets one suggestion and the code of usage.
func TestSlipsGetASuggestion(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"images":                      `did you mean "docker images"?`,
		"stats":                       `did you mean "sandbox top"?`,
		"commit build":                `did you mean "sandbox snapshot create"?`,
		"lst":                         `did you mean "list"?`,
		"delte a":                     `did you mean "delete"?`,
		"desc a":                      `did you mean "describe"?`,
		"volume rmm x":                `did you mean "rm"?`,
		"volume lst":                  `did you mean "list"?`,
		"snapshot lst":                `did you mean "list"?`,
		"snapshot delet x":            `did you mean "delete"?`,
		"node lst":                    `did you mean "list"?`,
		"create -p 8080":              "did you mean --port?",
		"create --publish 8080":       "did you mean --port?",
		"run -v /a:/a -- true":        "did you mean --mount, or --volume?",
		"run --cpus 2 -- true":        "did you mean --vcpus?",
		"run -d -- sleep 9":           "did you mean sandbox create, or sandbox exec --detach?",
		"create --label a=b":          "did you mean --tag?",
		"create --memroy 1g":          "did you mean --memory?",
		"volume list --lable x":       "",
		"volume nothing-like-it":      "",
		"frobnicate":                  "",
		"-- list":                     "", // it is "list"
		"list -n 3":                   "",
		"exec -it --tmieout 1s a b":   "did you mean --timeout?",
		"snapshot list --sandbx name": "did you mean --sandbox?",
	} {
		code, out, errOut := call(t.Context(), "", append([]string{"-H", "unix:///nowhere.sock"}, strings.Fields(line)...)...)
		if code != codeUsage || out != "" || !strings.Contains(errOut, want) || strings.Count(errOut, "did you mean") != min(len(want), 1) || strings.Contains(errOut, "nowhere") {
			t.Errorf("sandbox %s: code %d, %q, %q, want %d and %q", line, code, out, errOut, codeUsage, want)
		}
	}
}

// Flags that fingers know from docker are accepted where they mean what happens anyway.
func TestFlagsOfDockerAreAccepted(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"run --rm -it -- true", "run -i -t --rm -- true", "exec -it a -- true", "exec -i -t a true", "ps", "rm a", "ls"} {
		code, _, errOut := call(t.Context(), "", append([]string{"-H", "unix:///nowhere.sock"}, strings.Fields(line)...)...)
		if code == codeUsage || !strings.Contains(errOut, "/nowhere.sock") {
			t.Errorf("sandbox %s: code %d, %q, want that the engine is asked", line, code, errOut)
		}
	}
}
