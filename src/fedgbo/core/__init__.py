"""Types that everything else is made of; imports nothing else of ours."""
