import unittest

from tally import prices, total_cents

LIST = ["bread 2.40", "", "milk 1.15", "tea 4.20"]


class Tally(unittest.TestCase):
    def test_blank_lines_have_no_price(self):
        self.assertEqual(prices(LIST), [2.4, 1.15, 4.2])

    def test_every_item_counts(self):
        self.assertEqual(total_cents(LIST), 775)

    def test_one_item_is_its_own_total(self):
        self.assertEqual(total_cents(["bread 2.40"]), 240)


if __name__ == "__main__":
    unittest.main()
