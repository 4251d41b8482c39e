def compose(transforms):
    def run(value):
        for transform in transforms:
            value = transform(value)
        return value

    return run
