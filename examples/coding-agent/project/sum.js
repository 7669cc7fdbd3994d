// sum returns the sum of the numbers in a text, which commas separate.
exports.sum = (text) => text.split(',').map(parseInt).reduce((a, b) => a + b)
