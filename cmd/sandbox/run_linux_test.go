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
		`RUN sh -c 'echo out; sleep 1000 & echo started'; echo $?`,
		`RUN sh -c 'cat; echo out; echo err >&2; exit 3' <&- 2>&-; echo $?`,
		`RUN sh -c 'exit 3' >&- 2>&-; echo $?`,
		`RUN_I sh -c 'cat; exit 3' <&- >&- 2>&-; echo $?`,
		`coproc RUN_I sh -c "echo ready; read x; exit 4"; P=$COPROC_PID; read l <&${COPROC[0]}; kill -PIPE $P; echo >&${COPROC[1]}; wait $P; echo $?`,
		`coproc RUN sh -c 'trap "exit 7" TERM; echo ready; while :; do sleep 0.1; done'; P=$COPROC_PID; read l <&${COPROC[0]}; kill -TERM $P; wait $P; echo $?`,
		`coproc RUN sh -c 'trap "exit 7" HUP; echo ready; while :; do sleep 0.1; done'; P=$COPROC_PID; read l <&${COPROC[0]}; kill -HUP $P; wait $P; echo $?`,
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			run := func(command, options string) string {
				return runScript(t, path, strings.NewReplacer("RUN_I", command+" -i "+options, "RUN", command+" "+options).Replace(script))
			}
			got, want := run("sandbox run", "-q --"), run("docker run", "--rm --init --network none --entrypoint '' "+sandbox.DefaultImage)
			if differs := strings.Contains(script, "exit 7"); (got != want) != differs {
				t.Errorf("sandbox run: %q\ndocker run:  %q\nthey differ according to docs/differences.md: %t", got, want, differs)
			}
		})
	}
}
