package record

import (
	"strconv"
	"strings"
	"time"
)

// SweepEvery is how often all clients of an engine together sweep, by the engine's clock.
const SweepEvery = time.Minute

// SweepName is the name of the volume whose creator makes the sweep that is due at that time.
func SweepName(now time.Time) string {
	return objects + "sweep.S" + strconv.FormatInt(now.Unix()/int64(SweepEvery/time.Second), 10)
}

// IsSweepName reports whether an object's name is one that SweepName returns for some time.
func IsSweepName(object string) bool { return strings.HasPrefix(object, objects+"sweep.S") }
