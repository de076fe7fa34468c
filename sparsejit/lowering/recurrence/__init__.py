"""What goes on in time: recurrent layers, gates, draws of samples."""
