"""The program of an actor: it runs the code of an Action and answers calls (docs/designs/functions.md, "Actor protocol")."""
