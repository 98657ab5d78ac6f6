"""Write patients.csv: made-up patients with diabetes in seven hospitals, for the tutorial on your
own table.

Complications follow a patient's blood sugar over months. Six hospitals measure glucose before
breakfast, which says more about it than HbA1c does. St Anne, the smallest, measures glucose after
meals, which says hardly anything. So a model that fits the average patient relies on glucose and
fails St Anne; a model that relies on HbA1c serves all seven.
"""

import numpy as np
import pandas as pd

# patients, the share of women, and whether glucose is measured before breakfast
HOSPITALS = {
    "Northfield": (370, 0.35, True),
    "Eastgate": (310, 0.40, True),
    "Harbour": (260, 0.35, True),
    "Lakeside": (220, 0.40, True),
    "Westbrook": (190, 0.45, True),
    "Hillcrest": (160, 0.35, True),
    "St Anne": (130, 0.85, False),
}
# how much each diagnosis code and each therapy adds to the risk
DIAGNOSES = {
    "E11.2": 0.8,
    "E11.3": -0.4,
    "E11.4": 0.3,
    "E11.5": 0.9,
    "E11.6": -0.6,
    "E11.9": -1.0,
}
THERAPIES = {"diet": -0.8, "pills": -0.4, "GLP-1": -0.6, "insulin": 1.0, "mixed": 0.8}
SEED = 2026


def patients(hospital: str, rng: np.random.Generator) -> pd.DataFrame:
    """The patients of one hospital; a few values of HbA1c and smoking habits are missing."""
    rows, women, fasting = HOSPITALS[hospital]
    sugar, age, bmi, pressure = rng.normal(size=(4, rows))
    female, smoker = rng.random(rows) < women, rng.random(rows) < 0.25
    diagnosis, therapy = rng.choice(list(DIAGNOSES), rows), rng.choice(list(THERAPIES), rows)
    glucose = _measured(sugar, 0.98 if fasting else 0.1, rng)
    hba1c = _measured(sugar, 0.9, rng)
    risk = 4.5 * sugar + 0.8 * age + 0.5 * bmi + 0.5 * pressure + 0.8 * smoker - 0.2
    risk += [
        DIAGNOSES[code] + THERAPIES[name] for code, name in zip(diagnosis, therapy, strict=True)
    ]
    ill = rng.random(rows) < 1 / (1 + np.exp(-risk))
    table = pd.DataFrame(
        {
            "hospital": hospital,
            "age": (61 + 11 * age).round().astype(int),
            "sex": np.where(female, "female", "male"),
            "bmi": (29 + 4 * bmi).round(1),
            "systolic": (136 + 16 * pressure).round().astype(int),
            "glucose": ((8.2 if fasting else 11.0) + 1.9 * glucose).round(1),
            "hba1c": (7.4 + 1.1 * hba1c).round(1),
            "smoker": np.where(smoker, "yes", "no"),
            "diagnosis": diagnosis,
            "therapy": therapy,
            "complication": np.where(ill, "yes", "no"),
        }
    )
    table.loc[rng.random(rows) < 0.04, "hba1c"] = np.nan
    table.loc[rng.random(rows) < 0.03, "smoker"] = None
    return table


def _measured(value: np.ndarray, correlation: float, rng: np.random.Generator) -> np.ndarray:
    return correlation * value + np.sqrt(1 - correlation**2) * rng.normal(size=len(value))


if __name__ == "__main__":
    rng = np.random.default_rng(SEED)
    table = pd.concat([patients(hospital, rng) for hospital in HOSPITALS])
    table.to_csv("patients.csv", index=False)
    print(f"patients.csv: {len(table)} patients in {len(HOSPITALS)} hospitals")
