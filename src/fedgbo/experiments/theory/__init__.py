"""The paper's convergence theory (Section 4 and Appendix A) as functions, compared with measurements."""
