"""One module a command of the `sparsejit` command line; heavy imports wait until it runs."""
