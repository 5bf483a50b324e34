"""The model card of a finished run: facts are gathered, text is made of them, and the folder gets its README.md."""
