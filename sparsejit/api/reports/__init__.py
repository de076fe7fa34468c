"""Reports: kernels, reasons, times and errors of layers, as data, tables and pages."""
