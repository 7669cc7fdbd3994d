package main

import (
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
)

// What a script sees of run is what it sees of docker run, whose container has an init and not the image's entrypoint. A reader that
// leaves is no case: it leaves docker's container running.
func TestRunInScriptsIsAsDockerRun(t *testing.T) {
	t.Parallel()
	path := program(t)
	for _, script := range []string{
		`printf 'a\nb\n' | while read l; do RUN echo $l; done`,
		`printf 'a\nb\n' | while read l; do RUN_I cat; done`,
		`echo some | RUN cat; echo $?`,
		`RUN_I cat <&-; echo $?`,
		`RUN echo hi >&-; echo $?`,
		`RUN sh -c 'echo out; echo err >&2; exit 3' 2>/dev/null; echo $?`,
		`RUN sh -c 'kill -9 $$'; echo $?`,
		`RUN sh -c 'kill -TERM $$'; echo $?`,
		`RUN no-such; echo $?`,
		`RUN /etc/passwd; echo $?`,
		`head -c 3000000 /dev/zero | RUN_I wc -c`,
		`RUN_I head -c 3 </dev/zero | wc -c`,
		`RUN seq 200000 | tail -1`,
		`RUN sh -c 'sleep 1000 >/dev/null 2>&1 & echo started'; echo $?`,
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			run := func(command, options string) string {
				return runScript(t, path, strings.NewReplacer("RUN_I", command+" -i "+options, "RUN", command+" "+options).Replace(script))
			}
			if got, want := run("sandbox run", "-q --"), run("docker run", "--rm --init --network none --entrypoint '' "+sandbox.DefaultImage); got != want {
				t.Errorf("sandbox run: %q\ndocker run:  %q", got, want)
			}
		})
	}
}
