package report_test

import (
	"strings"
	"testing"

	api "github.com/holdfast-cni/holdfast/api/v1alpha1"
	. "github.com/holdfast-cni/holdfast/internal/report"
)

// A person's reservation in any script is cut between characters.
func TestLaterOwnerIsCutBetweenCharacters(t *testing.T) {
	for _, id := range []string{"一二三四五六七", "ab一二三四五六七", "réservé-für-größe", idDead, evil, strings.Repeat("é", 30)} {
		r := &api.Resource{ContainerID: id}
		for _, whole := range []bool{false, true} {
			harmless(t, "owner", Owner(r, whole))
		}
	}
}

// A witness's name in a saved document is text from somebody's file.
func TestLaterComplaintsOfAHostileDocument(t *testing.T) {
	for _, l := range Complaints(api.Vantage{Proven: true}, []api.Witness{{Name: evil, State: "silent", Required: true}}, nil) {
		harmless(t, "complaint", l)
	}
}
