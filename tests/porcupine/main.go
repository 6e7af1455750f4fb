// Reads the history of a log as JSON lines from standard input and prints what Porcupine says: Ok, Illegal or
// Unknown (not decided within a minute). checker.py writes the lines and says what is in them.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// call is one line: an append, a read, or, once, the whole log after all calls.
type call struct {
	Kind         string         `json:"kind"`
	Begin        int64          `json:"begin"`
	End          int64          `json:"end"`
	Value        string         `json:"value"`
	Outcome      string         `json:"outcome"`
	Offset       int            `json:"offset"`
	ExpectOffset *int           `json:"expect_offset"`
	Expect       string         `json:"expect"`
	Update       *string        `json:"update"`
	Start        int            `json:"start"`
	Values       []string       `json:"values"`
	Log          map[int]string `json:"log"`
}

// state is a log at one moment. Its records are the first ones of the log in the end: nothing is ever removed.
type state struct {
	length   int
	register string
}

const patience = time.Minute

func main() {
	calls, log, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Println(porcupine.CheckOperationsTimeout(model(log), operations(calls, log), patience))
}

func read(input io.Reader) ([]call, map[int]string, error) {
	var calls []call
	var log map[int]string
	decoder := json.NewDecoder(input)
	decoder.DisallowUnknownFields()
	for {
		var next call
		err := decoder.Decode(&next)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		if next.Kind == "log" {
			log = next.Log
		} else {
			calls = append(calls, next)
		}
	}
	if log == nil {
		return nil, nil, errors.New("there is no line with the log")
	}
	return calls, log, nil
}

// operations makes Porcupine's history, without the calls that changed and showed nothing: they fit anywhere,
// and a search would try them everywhere. The last operation is a read of the whole log.
func operations(calls []call, log map[int]string) []porcupine.Operation {
	values := make(map[string]bool, len(log))
	for _, value := range log {
		values[value] = true
	}
	var found []porcupine.Operation
	var last int64
	for _, one := range calls {
		last = max(last, one.Begin, one.End)
		end := one.End
		if one.Kind == "append" {
			if one.Outcome == "refused" || one.Outcome == "unknown" && !values[one.Value] {
				continue
			}
			if one.Outcome == "unknown" {
				// It may have happened after the caller had heard that nobody knows.
				end = math.MaxInt64
			}
		}
		found = append(found, porcupine.Operation{Input: one, Call: one.Begin, Return: end})
	}
	whole := call{Kind: "log"}
	return append(found, porcupine.Operation{Input: whole, Call: last + 1, Return: last + 1})
}

func model(log map[int]string) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(before, input, _ any) (bool, any) {
			return step(log, before.(state), input.(call))
		},
	}
}

// step says whether a log may answer a call so, and what it is then.
func step(log map[int]string, before state, one call) (bool, state) {
	switch one.Kind {
	case "append":
		return appendTo(log, before, one)
	case "read":
		return isRead(log, before, one), before
	default:
		return before.length == len(log), before
	}
}

func appendTo(log map[int]string, before state, one call) (bool, state) {
	offset := before.length + 1
	value, isThere := log[offset]
	switch {
	case !isThere || value != one.Value:
		return false, before
	case one.Outcome == "ok" && one.Offset != offset:
		return false, before
	case one.ExpectOffset != nil && *one.ExpectOffset != offset:
		return false, before
	case one.Update == nil:
		return true, state{offset, before.register}
	}
	return one.Expect == before.register, state{offset, *one.Update}
}

func isRead(log map[int]string, before state, one call) bool {
	if len(one.Values) == 0 {
		return one.Start > before.length
	}
	if one.Start+len(one.Values) != before.length+1 {
		return false
	}
	for at, value := range one.Values {
		if found, isThere := log[one.Start+at]; !isThere || found != value {
			return false
		}
	}
	return true
}
