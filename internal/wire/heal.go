// Package wire holds what the parts of Holdfast say to each other: the IPAM plugin to the
// agent over its socket, or to `holdfast heal` over its standard streams. One request and
// one response, each a JSON document on a line of its own.
//
// Scope: the documents, their bounds, and their text form. Non-scope: sockets, judging.
// The plugin links this package, so it links nothing but encoding/json.
package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// Versions and kinds.
const (
	APIVersion       = "holdfast.dev/v1alpha1"
	KindHealRequest  = "HealRequest"
	KindHealResponse = "HealResponse"
	// MaxLine bounds a document, in bytes. 60,000 valid attachments are 8 MB.
	MaxLine = 32 << 20
)

// HealRequest asks for one bounded emergency sweep of one network.
type HealRequest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// DataDir is the absolute path of the parent of the network's directory.
	DataDir string `json:"dataDir"`
	Network string `json:"network"`
	// Spare is the container that is being added: its runtime does not list it yet.
	Spare string `json:"spare,omitempty"`
	// Valid are the attachments that a runtime says it has (CNI GC); nil if it was not asked.
	// What is listed is alive. What is not goes through the same gates as anything else.
	Valid *[]Attachment `json:"validAttachments,omitempty"`
}

// Attachment is one of CNI's cni.dev/valid-attachments.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// HealResponse says what came of it.
type HealResponse struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Released counts reservations.
	Released int `json:"released"`
	// Counts are the reservations of the network by verdict, after the sweep.
	Counts map[string]int `json:"counts,omitempty"`
	// Withheld are reasons why something that might go did not, each once.
	Withheld []string `json:"withheld,omitempty"`
	// Error says why there was no sweep, or not a whole one.
	Error string `json:"error,omitempty"`
}

// String is one clause for an error message. It has nothing but what prints.
func (r HealResponse) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(r.Counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, r.Counts[k]))
	}
	text := fmt.Sprintf("healing released %d", r.Released)
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	if len(r.Withheld) > 0 {
		text += "; withheld: " + strings.Join(r.Withheld, "; ")
	}
	if r.Error != "" {
		text += "; " + r.Error
	}
	return clean(text)
}

// clean replaces what a terminal must not get raw.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?' // a control or format character, or no text at all
	}, s)
}

// Write writes one document on one line.
func Write(w io.Writer, doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	if len(b) >= MaxLine {
		return fmt.Errorf("a document of %d bytes; allowed are %d", len(b), MaxLine)
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// ReadRequest reads one request.
func ReadRequest(r io.Reader) (HealRequest, error) {
	var q HealRequest
	err := read(r, &q)
	if err == nil && (q.APIVersion != APIVersion || q.Kind != KindHealRequest) {
		err = fmt.Errorf("it is %q %q; wanted is %q %q", q.APIVersion, q.Kind, APIVersion, KindHealRequest)
	}
	return q, err
}

// ReadResponse reads one response.
func ReadResponse(r io.Reader) (HealResponse, error) {
	var p HealResponse
	err := read(r, &p)
	if err == nil && (p.APIVersion != APIVersion || p.Kind != KindHealResponse) {
		err = fmt.Errorf("it is %q %q; wanted is %q %q", p.APIVersion, p.Kind, APIVersion, KindHealResponse)
	}
	return p, err
}

func read(r io.Reader, doc any) error {
	line, err := bufio.NewReader(io.LimitReader(r, MaxLine)).ReadBytes('\n')
	if err != nil && len(bytes.TrimSpace(line)) == 0 {
		return err
	}
	if err := json.Unmarshal(line, doc); err != nil {
		return fmt.Errorf("no whole document: %w", err)
	}
	return nil
}
