"""Images: files and arrays as pixels, corpora of images with captions, and the built-in corpus `scenes`."""
