package conform_test

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/conform"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// Every check works on the engine that the tests run on.
func TestEveryCheckWorks(t *testing.T) {
	enginetest.Need(t)
	report, err := conform.Run(t.Context(), harness.NewClient(t), conform.Options{})
	t.Log("\n" + report.String())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Results) != len(conform.Checks()) || report.Count(conform.Works) != len(report.Results) {
		t.Error("not everything works: the table is above")
	}
}
