"""Settings that every test shares."""

from hypothesis import settings

# An example may compile a kernel or wait for a busy core; that is not a failure.
settings.register_profile("sparsejit", deadline=None)
settings.load_profile("sparsejit")
