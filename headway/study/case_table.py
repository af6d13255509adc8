def case_table(studies):
    return ""
