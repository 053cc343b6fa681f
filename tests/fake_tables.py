"""Small random tables in exactly the raw formats of Adult and Lending Club, for machines without the real data."""

import csv
from pathlib import Path

import numpy as np

WORKCLASS = ["Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay"]
EDUCATION = ["Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad", "Some-college"]
EDUCATION += ["Assoc-voc", "Assoc-acdm", "Bachelors", "Masters", "Prof-school", "Doctorate"]  # numbered from 1
MARITAL = ["Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent"]
MARITAL += ["Married-AF-spouse"]
OCCUPATION = ["Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty"]
OCCUPATION += ["Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving"]
OCCUPATION += ["Priv-house-serv", "Protective-serv", "Armed-Forces"]
RELATIONSHIP = ["Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"]
RACE = ["White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"]
COUNTRY = ["United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany", "Outlying-US(Guam-USVI-etc)"]
COUNTRY += ["India", "Japan", "Greece", "South", "China", "Cuba", "Iran", "Honduras", "Philippines", "Italy"]
COUNTRY += ["Poland", "Jamaica", "Vietnam", "Mexico", "Portugal", "Ireland", "France", "Dominican-Republic", "Laos"]
COUNTRY += ["Ecuador", "Taiwan", "Haiti", "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand"]
COUNTRY += ["Yugoslavia", "El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands"]

PURPOSE = ["debt_consolidation", "credit_card", "other", "home_improvement", "major_purchase", "small_business"]
PURPOSE += ["car", "wedding", "medical", "moving", "house", "educational", "vacation", "renewable_energy"]
EMPLOYMENT = ["n/a", "< 1 year", "1 year", *(f"{years} years" for years in range(2, 10)), "10+ years"]
AFTER_OUTCOME = ["total_pymnt", "total_pymnt_inv", "total_rec_prncp", "total_rec_int", "total_rec_late_fee"]
AFTER_OUTCOME += ["recoveries", "collection_recovery_fee", "last_pymnt_d", "last_pymnt_amnt", "last_credit_pull_d"]
AFTER_OUTCOME += ["debt_settlement_flag"]


def write_fake_adult(folder, rows=600, seed=0):
    """`folder/adult/adult.data` with that many rows and `adult.test` with half as many; some rows have a "?"."""
    rng = np.random.default_rng(seed)
    place = Path(folder) / "adult"
    place.mkdir(parents=True, exist_ok=True)
    train = [", ".join(_person(rng, index)) for index in range(rows)]
    test = [", ".join(_person(rng, index)) + "." for index in range(rows // 2)]
    (place / "adult.data").write_text("\n".join(train) + "\n\n", "utf-8")  # the original ends with an empty line too
    (place / "adult.test").write_text("\n".join(["|1x3 Cross validator", *test]) + "\n\n", "utf-8")
    return Path(folder)


def _person(rng, index):
    age, years, hours = rng.integers(17, 80), rng.integers(1, 17), rng.integers(10, 70)
    male = rng.random() < 0.67
    gain = rng.integers(1_000, 20_000) if rng.random() < 0.1 else 0
    loss = rng.integers(500, 2_500) if rng.random() < 0.05 else 0
    married = rng.random() < (0.6 if male else 0.2)  # so that sex can be told from other columns, as in the original
    marital = MARITAL[0] if married else rng.choice(MARITAL[1:])
    relationship = ("Husband" if male else "Wife") if married else rng.choice([RELATIONSHIP[i] for i in (1, 3, 4, 5)])
    workclass, occupation, race = rng.choice(WORKCLASS), rng.choice(OCCUPATION), rng.choice(RACE)
    country = "United-States" if rng.random() < 0.8 else rng.choice(COUNTRY)
    if index < len(COUNTRY):  # the first complete rows go through all categories, so that each has its feature
        turn = lambda values: values[index % len(values)]
        workclass, marital, occupation = turn(WORKCLASS), turn(MARITAL), turn(OCCUPATION)
        relationship, race, country = turn(RELATIONSHIP), turn(RACE), turn(COUNTRY)
    elif rng.random() < 0.03:
        country = "?"
    elif rng.random() < 0.06:  # as in the original: who has no known class of work has no known occupation
        workclass, occupation = rng.choice(["?", "Never-worked"]), "?"
    score = 0.35 * (years - 10) + 0.04 * (age - 40) + 0.03 * (hours - 40) + 3.0 * (gain > 0) - 3.0
    score += 1.5 * married + 1.5 * male
    income = ">50K" if rng.random() < 1 / (1 + np.exp(-score)) else "<=50K"
    weight, sex = rng.integers(20_000, 500_000), "Male" if male else "Female"
    person = [age, workclass, weight, EDUCATION[years - 1], years, marital, occupation, relationship, race, sex]
    return [str(value) for value in [*person, gain, loss, hours, country, income]]


def write_fake_lending(folder, rows=800, seed=0):
    """`folder/lending/lending_club_2007_2011.csv`; one loan in 16 falls under each rule, and some values are missing."""
    rng = np.random.default_rng(seed)
    place = Path(folder) / "lending"
    place.mkdir(parents=True, exist_ok=True)
    loans = [_loan(rng, index) for index in range(rows)]
    with (place / "lending_club_2007_2011.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(loans[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(loans)
    return Path(folder)


def _loan(rng, index):
    grade = "ABCDEFG"[rng.choice(7, p=[0.24, 0.29, 0.2, 0.14, 0.08, 0.03, 0.02])]
    employment = rng.choice(EMPLOYMENT)
    if index % 16 == 0:
        grade, employment = "G", ("n/a", "< 1 year")[index // 16 % 2]
    elif index % 16 == 1:
        grade, employment = "A", "10+ years"
    risk = "ABCDEFG".index(grade)
    amount, rate = 25 * rng.integers(20, 1_400), round(6 + 2.6 * risk + rng.random(), 2)
    term, income = (36, 60)[int(rng.random() < 0.25)], round(np.exp(rng.normal(11, 0.5)))
    purpose, housing = PURPOSE[index % len(PURPOSE)], rng.choice(["RENT", "MORTGAGE", "OWN", "OTHER", "NONE"])
    repaid = rng.random() < 1 / (1 + np.exp(0.25 * risk - 2.4 - 0.5 * (np.log(income) - 11)))
    status = "Fully Paid" if repaid else "Charged Off"
    delinquencies, records = rng.poisson(0.15), rng.poisson(0.06)
    paid = amount * (1.2 if repaid else 0.5)
    loan = {
        "loan_amnt": amount,
        "funded_amnt": amount,
        "funded_amnt_inv": float(amount),
        "term": term,
        "int_rate": rate,
        "installment": round(amount * (1 / term + rate / 1200), 2),
        "grade": grade,
        "sub_grade": f"{grade}{rng.integers(1, 6)}",
        "emp_length": employment,
        "home_ownership": housing,
        "annual_inc": "" if index == 5 else float(income),
        "verification_status": rng.choice(["Not Verified", "Verified", "Source Verified"]),
        "issue_d": f"20{rng.integers(8, 12):02d}-{rng.integers(1, 13):02d}",
        "loan_status": f"Does not meet the credit policy. Status:{status}" if rng.random() < 0.06 else status,
        "purpose": purpose,
        "addr_state": rng.choice(["CA", "NY", "FL", "TX"]),
        "dti": round(30 * rng.random(), 2),
        "delinq_2yrs": delinquencies,
        "inq_last_6mths": rng.poisson(1.0),
        # Missing means never; some early loans have a 0 for it.
        "mths_since_last_delinq": rng.integers(1, 120)
        if delinquencies or rng.random() < 0.3
        else ("", 0)[index % 9 == 0],
        "mths_since_last_record": rng.integers(1, 120) if records else ("", 0)[index % 9 == 0],
        "open_acc": rng.integers(1, 30),
        "pub_rec": records,
        "revol_bal": round(np.exp(rng.normal(9, 1))),
        "revol_util": "" if index == 7 else round(100 * rng.random(), 1),
        "total_acc": rng.integers(1, 60),
        "pub_rec_bankruptcies": "" if rng.random() < 0.05 else min(records, 1),
    }
    late = [paid, paid, min(paid, amount), max(paid - amount, 0), 0.0, 0.0 if repaid else 100.0, 0.0 if repaid else 9.0]
    return loan | dict(
        zip(AFTER_OUTCOME, [*late, "2013-03", round(paid / 9, 2), "2017-10", "YN"[int(repaid)]], strict=True)
    )
