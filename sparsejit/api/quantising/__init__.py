"""Choice of dtypes and scales, from examples of the inputs."""
