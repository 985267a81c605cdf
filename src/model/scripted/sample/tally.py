"""Adds up a shopping list: one line an item, the price at its end."""


def prices(lines):
    """The price of each line that is not blank."""
    return [float(line.split()[-1]) for line in lines if line.strip()]


def total_cents(lines):
    """The sum of all prices, in cents."""
    cents = 0
    for price in prices(lines)[1:]:
        cents += round(price * 100)
    return cents
