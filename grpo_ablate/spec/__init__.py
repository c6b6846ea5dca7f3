"""The specs: testbeds, experiments, rows, presets; resolution, validation, identity. No torch here."""
