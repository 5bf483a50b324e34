"""What a model will be trained on: figures and views of tokenized rows. Data in, data out; nothing here trains."""
