package main

import (
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// What a script sees of run is what it sees of docker run, whose container has an init and not the image's entrypoint. A reader that
// leaves is no case: it leaves docker's container running.
func TestRunInScriptsIsAsDockerRun(t *testing.T) {
	t.Parallel()
	path := program(t)
	scripts := []string{
		`printf 'a\nb\n' | while read l; do RUN IMAGE echo $l; done`,
		`printf 'a\nb\n' | while read l; do RUN -i IMAGE cat; done`,
		`echo some | RUN IMAGE cat; echo $?`,
		`RUN -i IMAGE cat <&-; echo $?`,
		`RUN IMAGE echo hi >&-; echo $?`,
		`RUN IMAGE sh -c 'echo out; echo err >&2; exit 3' 2>/dev/null; echo $?`,
		`RUN IMAGE sh -c 'kill -9 $$'; echo $?`,
		`RUN IMAGE sh -c 'kill -TERM $$'; echo $?`,
		`RUN IMAGE no-such; echo $?`,
		`RUN IMAGE /etc/passwd; echo $?`,
		`head -c 3000000 /dev/zero | RUN -i IMAGE wc -c`,
		`RUN -i IMAGE head -c 3 </dev/zero | wc -c`,
		`RUN IMAGE seq 200000 | tail -1`,
		`RUN IMAGE sh -c 'sleep 1000 >/dev/null 2>&1 & echo started'; echo $?`,
		`RUN IMAGE sh -c 'echo out; sleep 1000 & echo started'; echo $?`,
		`RUN IMAGE sh -c 'cat; echo out; echo err >&2; exit 3' <&- 2>&-; echo $?`,
		`RUN IMAGE sh -c 'exit 3' >&- 2>&-; echo $?`,
		`RUN -i IMAGE sh -c 'cat; exit 3' <&- >&- 2>&-; echo $?`,
		`coproc RUN -i IMAGE sh -c "echo ready; read x; exit 4"; P=$COPROC_PID; read l <&${COPROC[0]}; kill -PIPE $P; echo >&${COPROC[1]}; wait $P; echo $?`,
		`coproc RUN IMAGE sh -c 'trap "exit 7" TERM; echo ready; while :; do sleep 0.1; done'; P=$COPROC_PID; read l <&${COPROC[0]}; kill -TERM $P; wait $P; echo $?`,
		`coproc RUN IMAGE sh -c 'trap "exit 7" HUP; echo ready; while :; do sleep 0.1; done'; P=$COPROC_PID; read l <&${COPROC[0]}; kill -HUP $P; wait $P; echo $?`,
	}
	for _, seed := range harness.Seeds(1, 20) {
		for _, script := range randomCalls(seed, harness.Rounds(6, 20)) {
			if !strings.Contains(script, "| head -c 10") {
				scripts = append(scripts, strings.NewReplacer("EXEC", "RUN", " BOX ", " IMAGE ").Replace(script))
			}
		}
	}
	for _, script := range scripts {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			run := func(command, image string) string {
				return runScript(t, path, strings.NewReplacer("RUN", command, "IMAGE", image).Replace(script))
			}
			got, want := run("sandbox run -q", "--"), run("docker run --rm --init --network none --workdir /workspace --entrypoint ''", sandbox.DefaultImage)
			if differs := strings.Contains(script, "exit 7"); (got != want) != differs {
				t.Errorf("sandbox run: %q\ndocker run:  %q\nthey differ according to docs/differences.md: %t", got, want, differs)
			}
		})
	}
}
