"""The command line `skdpmf`, its verbs, the demo and the page in the browser."""
