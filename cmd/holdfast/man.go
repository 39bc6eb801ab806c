package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/holdfast-cni/holdfast/internal/claim"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages of all commands into a directory",
		Example: `  holdfast man /usr/local/share/man/man8
  mkdir -p /tmp/man && holdfast man /tmp/man && man -l /tmp/man/holdfast-gc.8`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef("man wants one directory, and it must exist")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if fi, err := os.Stat(args[0]); err != nil {
				return err
			} else if !fi.IsDir() {
				return fmt.Errorf("%q is not a directory", args[0])
			}
			return writeMan(cmd.Root(), args[0])
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
}

// writeMan writes a page for each command. The same commands give the same bytes: the
// date is that of the manual, not of the build.
func writeMan(root *cobra.Command, dir string) error {
	date := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, &doc.GenManHeader{Title: "HOLDFAST", Section: "8", Date: &date, Source: "Holdfast", Manual: "Holdfast"}, dir)
}

// addCompletion adds `holdfast completion` for bash, zsh and fish, and tells the shells
// which values and which kinds of files the flags of all commands take. It comes after
// all commands. A flag that is not there is left out, so registering cannot fail; a test
// asks for the values.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Short = "Print a completion script for a shell"
		c.Args = args0
		c.RunE = func(*cobra.Command, []string) error { return usagef("completion wants a shell: bash, zsh or fish") }
		for _, shell := range c.Commands() {
			shell.Args = args0
			// No node that this runs on has it.
			if shell.Name() == "powershell" {
				c.RemoveCommand(shell)
			}
		}
	}
	values := map[string][]string{
		"output":  {"table", "wide", "json", "yaml"},
		"witness": {claim.WitnessKernel, claim.WitnessProcess, claim.WitnessCRI},
	}
	dirs := []string{"state-dir", "run-dir", "proc", "cni-conf-dir", "data-dir", "cni-cache-dir", "cni-bin-dir", "store"}
	for _, c := range append(root.Commands(), root) {
		fs := c.Flags()
		if c == root {
			fs = c.PersistentFlags()
		}
		for name, list := range values {
			// report's --output is a file.
			if fs.Lookup(name) != nil && (name != "output" || c == root) {
				_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp))
			}
		}
		for _, name := range dirs {
			if fs.Lookup(name) != nil {
				_ = cobra.MarkFlagDirname(fs, name)
			}
		}
	}
}
