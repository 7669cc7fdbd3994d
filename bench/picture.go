package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
)

// The picture has two parts: a bar for each way under each load, and the times of jobs by the rate at
// which they arrive. Times are on a logarithmic scale.
const (
	pictureWidth          = 760
	pictureLeft           = 160
	pictureRight          = 80
	barHeight             = 18
	chartTop, chartHeight = 60, 220
	shortest              = 1.0 // ms, at the left or lower end of a scale
)

var colours = map[string]string{"pool": "#1a7f37", "create": "#0969da", "docker run": "#8c959f"}

// A drawing is an SVG image.
type drawing struct{ bytes.Buffer }

func (d *drawing) text(x, y float64, anchor, text string) {
	fmt.Fprintf(d, `<text x="%.1f" y="%.1f" text-anchor="%s">`, x, y, anchor)
	xml.EscapeText(d, []byte(text))
	d.WriteString("</text>\n")
}

func (d *drawing) line(x1, y1, x2, y2 float64, colour string, width float64) {
	fmt.Fprintf(d, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`+"\n", x1, y1, x2, y2, colour, width)
}

// picture draws the runs.
func picture(runs, loads []*run) []byte {
	top := float64(chartTop)
	bars := float64(len(runs)*(barHeight+4) + len(runs)/3*10)
	height := top + bars + 90 + chartHeight + 60
	d := &drawing{}
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %[1]d %.0[2]f" font-family="sans-serif" font-size="12">`+"\n", pictureWidth, height)
	d.WriteString(`<rect width="100%" height="100%" fill="#ffffff"/>` + "\n")
	d.bars(runs, top)
	d.curves(loads, top+bars+90)
	d.WriteString("</svg>\n")
	return d.Bytes()
}

// longest returns the greatest of all times, rounded up to a power of ten.
func longest(all []*run) float64 {
	ms := 10.0
	for _, m := range all {
		for ms < m.took.percentile(99) {
			ms *= 10
		}
	}
	return ms
}

// scale returns where a time is between from and to.
func scale(ms, most, from, to float64) float64 {
	return from + (to-from)*math.Log(max(ms, shortest)/shortest)/math.Log(most/shortest)
}

// bars draws a bar up to the median of each run, and ticks at the 95th and the 99th percentile.
func (d *drawing) bars(runs []*run, top float64) {
	most := longest(runs)
	x := func(ms float64) float64 { return scale(ms, most, pictureLeft, pictureWidth-pictureRight) }
	d.text(8, 24, "start", "From the request for a sandbox to the exit of node -v: median (bar), 95th and 99th percentile (ticks)")
	y := top
	for i, m := range runs {
		if i > 0 && m.load != runs[i-1].load {
			y += 10
		}
		fmt.Fprintf(d, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"/>`+"\n", x(shortest), y, x(m.took.median())-x(shortest), barHeight, colours[m.way])
		for _, p := range []float64{95, 99} {
			at := x(m.took.percentile(p))
			d.line(at, y, at, y+barHeight, "#24292f", 1.5)
		}
		d.text(pictureLeft-8, y+13, "end", m.load+", "+m.way)
		d.text(x(m.took.percentile(99))+6, y+13, "start", fmt.Sprintf("%.0f ms", m.took.median()))
		y += barHeight + 4
	}
	for ms := shortest; ms <= most; ms *= 10 {
		d.line(x(ms), top-4, x(ms), y, "#d0d7de", 0.7)
		d.text(x(ms), top-8, "middle", fmt.Sprintf("%.0f ms", ms))
	}
}

// curves draws median and 99th percentile of each way by the rate of arrivals.
func (d *drawing) curves(loads []*run, top float64) {
	if len(loads) == 0 {
		return
	}
	most, fastest := longest(loads), slices.MaxFunc(loads, func(a, b *run) int { return int(math.Copysign(1, a.rate-b.rate)) }).rate
	x := func(rate float64) float64 { return pictureLeft + (pictureWidth-pictureRight-pictureLeft)*rate/fastest }
	y := func(ms float64) float64 { return scale(ms, most, top+chartHeight, top) }
	d.text(8, top-24, "start", "From the arrival of a job to the exit of its fifth command, by arrivals per second: median, and 99th percentile (dashed)")
	for ms := shortest; ms <= most; ms *= 10 {
		d.line(pictureLeft, y(ms), pictureWidth-pictureRight, y(ms), "#d0d7de", 0.7)
		d.text(pictureLeft-8, y(ms)+4, "end", fmt.Sprintf("%.0f ms", ms))
	}
	for _, way := range []string{"pool", "create"} {
		for _, line := range []struct {
			dash    string
			percent float64
		}{{"none", 50}, {"5 4", 99}} {
			fmt.Fprintf(d, `<polyline fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s" points="`, colours[way], line.dash)
			for _, m := range loads {
				if m.way == way {
					fmt.Fprintf(d, "%.1f,%.1f ", x(m.rate), y(m.took.percentile(line.percent)))
				}
			}
			d.WriteString(`"/>` + "\n")
		}
	}
	for _, m := range loads {
		if m.way == loads[0].way {
			d.line(x(m.rate), top+chartHeight, x(m.rate), top+chartHeight+4, "#24292f", 1)
			d.text(x(m.rate), top+chartHeight+18, "middle", fmt.Sprintf("%.3g", m.rate))
		}
	}
	for i, way := range []string{"pool", "create"} {
		d.line(pictureLeft+float64(i)*120, top+chartHeight+40, pictureLeft+24+float64(i)*120, top+chartHeight+40, colours[way], 3)
		d.text(pictureLeft+30+float64(i)*120, top+chartHeight+44, "start", way)
	}
}
