// Package v1alpha1 holds the documents that Holdfast prints with -o json or -o yaml.
// Types without behaviour; schema.json beside them says the same to other languages.
//
// Within v1alpha1 fields are added, never renamed, and never change their meaning.
// Times are RFC 3339, durations are Go's ("1.5s").
package v1alpha1
